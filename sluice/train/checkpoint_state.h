// checkpoint_state.h - state.json of a checkpoint: where the run was, what it was, and the checksum
// of every other file. Free of torch. Read next: checkpoint.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sluice/model/config.h"
#include "sluice/train/config.h"

namespace sluice {

/// Size and checksum of a file.
struct FileRecord {
  std::int64_t num_bytes = 0;
  std::string xxh64;

  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

/// Everything beside the tensors that resuming needs. Ranks, schedule and microbatches are not in
/// it: they may change.
struct CheckpointState {
  std::int64_t step = 0;         // optimizer steps done
  std::int64_t next_sample = 0;  // global index of the first sequence not trained on yet
  std::int64_t tokens = 0;       // target tokens trained on
  std::int64_t seed = 0;
  std::int64_t sequence_length = 0;
  std::string data_digest;    // of the training tokens
  std::string config_digest;  // of the resolved config.toml
  ModelConfig model;
  // The learning rate is a function of the step and these.
  double learning_rate = 0.0;
  double min_learning_rate = 0.0;
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 0;

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

/// The state of a run after `step` steps, from its config.
CheckpointState make_state(const RunConfig& config, std::int64_t step, std::int64_t next_sample,
                           std::int64_t tokens, const std::string& data_digest);

/// Text of state.json: `state`, `files` and a checksum of both.
std::string state_json(const CheckpointState& state,
                       const std::map<std::string, FileRecord>& files);

/// What state.json held.
struct StoredState {
  CheckpointState state;
  std::map<std::string, FileRecord> files;
};

/// Reads the text of a state.json. Throws: Failure when anything in it is not as it was written.
StoredState parse_state_json(const std::string& text, const std::string& origin);
StoredState read_state(const std::filesystem::path& checkpoint);

/// Compares every file of the checkpoint with its record. Does nothing where there is no
/// state.json: the folder is then not a checkpoint. Throws: Failure naming the file that is
/// missing, truncated or altered.
void verify_checkpoint_files(const std::filesystem::path& folder);

/// Demands that a run with `config` over data of `data_digest` continues the run of `state`: same
/// model, seed, sequence length and data. Returns a line for every setting that may differ and
/// does. Throws: InvalidArgument naming the first difference that may not be.
std::vector<std::string> check_resume(const CheckpointState& state, const RunConfig& config,
                                      const std::string& data_digest);

}  // namespace sluice
