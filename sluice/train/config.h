// config.h - everything a run is told: config.toml with its defaults, checks and overrides. Free of
// torch. Read next: config_keys.h (the table of keys), tokens.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/model/config.h"

namespace sluice {

/// [data]: where tokens come from. docs/data.md describes the formats.
struct DataConfig {
  std::vector<std::string> paths;             // files, folders or patterns; needed
  std::vector<std::string> validation_paths;  // empty: a part of `paths`
  double validation_fraction = 0.05;          // of `paths`, when there are no validation_paths
  std::string format = "auto";                // auto, text, nanogpt, llm.c, megatron
  std::string tokenizer = "bytes";            // bytes (text), none (token files)
  std::vector<std::string> include;           // patterns of files taken from folders; empty: all
  std::vector<std::string> ignore;            // patterns of files and folders left out
  std::int64_t sequence_length = 256;         // tokens

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

/// [pipeline]: how a step is cut into passes and who runs them.
struct PipelineConfig {
  std::string schedule = "1f1b";
  int ranks = 2;
  std::string layers = "auto";  // as parse_layout reads it; a TOML list arrives as "3,3,2"
  int chunks = 0;               // stages per rank; 0: the schedule's default
  int slices = 1;               // pieces of a sequence
  int group = 0;                // 0: the schedule's default
  int microbatches = 4;
  int microbatch_size = 4;        // sequences in one microbatch
  std::string exchange = "auto";  // none, pairwise, balanced; auto: the faster of none and balanced
  std::string vocab = "last";     // last, parallel-1, parallel-2, auto
  std::string vocab_keep = "auto";  // auto, probabilities, recompute
  std::string offload = "none";  // none (then what the schedule does itself), half, full, auto or
                                 // a count of chunks
  std::string offload_tier = "host";
  std::string offload_dir;         // empty: the current folder
  double offload_slowdown = 0.01;  // how much longer a step may take for it
  double offload_replan = 0.2;     // how far the first steps may be from what it was planned with

  friend bool operator==(const PipelineConfig&, const PipelineConfig&) = default;
};

/// [parallel]: several pipelines beside each other, each with its part of every global batch.
struct ParallelConfig {
  int data = 1;  // pipelines; the optimizer state is sharded over them

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

/// [train]: the optimizer and how often what happens. 0 of an `_every` means never, except that a
/// run always saves at its end.
struct TrainConfig {
  std::int64_t steps = 1000;
  double learning_rate = 3e-4;
  double min_learning_rate = 3e-4 / 10;  // not given: a tenth of learning_rate
  std::int64_t warmup_steps = 50;        // not given: a twentieth of steps, at most 100
  double weight_decay = 0.1;             // of matrices only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double grad_clip = 1.0;  // largest global gradient norm; 0: no clipping
  double z_loss = 0.0;
  double label_smoothing = 0.0;  // only with a sharded vocabulary
  std::int64_t eval_every = 100;
  std::int64_t validation_batches = 8;  // global batches of one validation
  std::int64_t checkpoint_every = 500;

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

/// [run]: where and on what.
struct RunSection {
  std::string dir = "runs/default";
  std::int64_t seed = 1;
  std::string transport = "auto";       // auto, threads, mpi, nccl
  std::string device = "cpu";           // cpu, cuda
  std::int64_t trace_step = 0;          // step written to trace.json, counted from 1; 0: none
  std::int64_t keep_checkpoints = 3;    // newest kept; 0: all
  bool background_checkpoints = false;  // train on while one is written; not the last one
  double timeout_seconds = 300.0;       // longest wait for a peer
  bool check_offload = false;           // compare checksums of activations that come back
  bool tensorboard = false;
  bool rank_logs = false;  // a file of every rank

  std::chrono::milliseconds timeout() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::duration<double>(timeout_seconds));
  }

  friend bool operator==(const RunSection&, const RunSection&) = default;
};

/// A whole config.toml. Every member has a default that works except data.paths.
struct RunConfig {
  ModelConfig model;
  std::string model_weights;  // model.weights: a folder to start the weights from; empty: fresh
  DataConfig data;
  PipelineConfig pipeline;
  ParallelConfig parallel;
  TrainConfig train;
  RunSection run;

  /// Ranks of the whole run.
  int num_ranks() const { return pipeline.ranks * parallel.data; }
  /// Microbatches that one pipeline runs in a step.
  int microbatches_per_pipeline() const { return pipeline.microbatches / parallel.data; }

  /// Sequences of one optimizer step.
  std::int64_t global_batch() const {
    return std::int64_t{pipeline.microbatches} * pipeline.microbatch_size;
  }

  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

/// Reads TOML text, then `overrides` ("section.key=value", the value in TOML or a bare word), then
/// fills what is not given and checks everything. `origin` names the text in errors. With
/// model.weights the sizes of the model come from the config.json of that folder.
/// Throws: InvalidArgument: unknown section or key (with the nearest ones), wrong type, value out
/// of range, values that contradict each other, or an option that is not built yet.
RunConfig parse_config(std::string_view toml, const std::string& origin,
                       const std::vector<std::string>& overrides = {});

/// parse_config of a file. Throws: also InvalidArgument when it cannot be read.
RunConfig load_config(const std::filesystem::path& path,
                      const std::vector<std::string>& overrides = {});

/// The checks that need more than one key. parse_config has done them.
void check_run_config(const RunConfig& config);

/// All keys with their values, as TOML that parse_config reads back to the same config.
std::string to_toml(const RunConfig& config);

/// One line per key: name, default, what it is. For help and docs.
std::string describe_config_keys();

/// Whether half a slice of keys and values can move to another rank: half of their heads, or of the
/// rows where the number of heads is odd.
bool can_halve_slices(const RunConfig& config);

}  // namespace sluice
