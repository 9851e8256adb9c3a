// checkpoint.h - folders step-N of weights, optimizer moments and state, keyed by parameter name
// and free of the layout. Free of torch. Read next: tensors.h, optimizer.h.
//
// step-N/  model.safetensors      weights under their Hugging Face names
//          config.json            so that transformers loads the folder
//          optimizer.safetensors  exp_avg/NAME, exp_avg_sq/NAME and, for bf16 models, master/NAME
//          config.toml            the resolved settings of the run
//          state.json             position, checksums (checkpoint_state.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/train/checkpoint_state.h"
#include "sluice/train/safetensors.h"
#include "sluice/train/tensor_files.h"

namespace sluice {

/// Writes one checkpoint. Everything goes to `folder`/step-N.tmp; commit() brings it to the disk
/// and renames it, so that step-N is always whole. Without commit() the destructor removes it.
/// Threads: add_tensors() and add_text() may run on several threads at once, for different files.
class CheckpointWriter {
 public:
  /// Also removes what a crash left behind. Throws: Failure when the folder cannot be made.
  CheckpointWriter(std::filesystem::path folder, std::int64_t step);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Throws: Failure with the system's reason, such as no space left; nothing that was there before
  /// is touched.
  void add_tensors(const std::string& file_name, std::vector<NamedBytes> tensors);
  void add_text(const std::string& file_name, std::string_view text);

  /// Takes over a file that another process has written and closed in temporary().
  void add_record(const std::string& file_name, const FileRecord& record);
  const std::filesystem::path& temporary() const { return temporary_; }

  /// Writes state.json with the records of all files and gives the folder its final name; a
  /// checkpoint of the same step is replaced. Returns the final folder.
  std::filesystem::path commit(const CheckpointState& state);

 private:
  void record(const std::string& file_name, FileWriter& file);

  const std::filesystem::path folder_;
  const std::filesystem::path temporary_;
  const std::int64_t step_;
  bool committed_ = false;
  std::mutex mutex_;
  std::map<std::string, FileRecord> files_;  // guarded by mutex_
};

/// What a checkpoint holds. Tensors may come in any order.
struct CheckpointContents {
  CheckpointState state;
  std::string config_toml;
  std::vector<NamedBytes> weights;
  std::vector<NamedBytes> optimizer;
};

/// Writes `folder`/step-N and then removes all but the `keep` newest checkpoints (0: removes none).
/// REQUIRES: weights and optimizer are exactly those of the model (checked).
/// Throws: Failure; the checkpoints that were there stay.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder,
                                       const CheckpointContents& contents, std::int64_t keep);

/// Adds what is not tensors to a writer that has them all, commits, and removes older checkpoints
/// as write_checkpoint() does.
std::filesystem::path finish_checkpoint(CheckpointWriter& writer, const CheckpointState& state,
                                        const std::string& config_toml, std::int64_t keep);

/// Why a checkpoint could not be saved, as users read it.
Failure not_saved(std::int64_t step, const Failure& reason);

/// A checkpoint whose every byte was verified. Threads: any.
struct Checkpoint {
  std::filesystem::path path;
  CheckpointState state;
  TensorFiles weights;
  TensorFiles optimizer;
};

/// Opens step-N: checksums, names, shapes and types all have to be right.
/// Throws: Failure naming what is not and what to do.
Checkpoint open_checkpoint(const std::filesystem::path& path);

/// The newest complete checkpoint in `folder` (all files there with their sizes), and why newer
/// ones were passed over.
struct LatestCheckpoint {
  std::optional<std::filesystem::path> path;
  std::vector<std::string> skipped;
};
LatestCheckpoint latest_checkpoint(const std::filesystem::path& folder);

/// Names, shapes and element types of optimizer.safetensors for a model.
std::vector<WeightShape> optimizer_shapes(const ModelConfig& config);
ElementType weight_type(DType dtype);
ElementType optimizer_type(DType dtype);

}  // namespace sluice
