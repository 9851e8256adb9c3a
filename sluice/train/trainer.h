// trainer.h - a training run with ranks as threads of this process. Read next: rank_model.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/runtime/engine.h"
#include "sluice/train/batches.h"
#include "sluice/train/config.h"
#include "sluice/train/plan.h"
#include "sluice/train/rank_model.h"

namespace sluice {

/// What one step did, as rank 0 knows it.
struct StepReport {
  std::int64_t step = 0;  // from 1
  double loss = 0.0;      // nats per target token, without z-loss
  double gradient_norm = 0.0;
  double learning_rate = 0.0;
  std::int64_t num_tokens = 0;
  double seconds = 0.0;
};

/// What happens while a run goes on. Called on rank 0's thread; may be empty.
struct TrainEvents {
  std::function<void(const StepReport&)> step;
  std::function<void(std::int64_t step, double loss)> validation;
  std::function<void(std::int64_t step, const std::filesystem::path& folder)> checkpoint;
  std::function<bool()> stop;  // asked after each step; true: save and end
};

struct TrainResult {
  std::int64_t last_step = 0;
  std::optional<StepReport> last;
  std::optional<double> validation_loss;  // of the last validation
  bool stopped = false;                   // by TrainEvents::stop
  Timeline measured;                      // of the traced step, else of the fastest one
  std::int64_t measured_step = 0;
  std::vector<MemoryPeaks> memory;   // per rank, over all training steps
  std::vector<CopyCounters> copies;  // per rank, of all training steps
  MemoryCurve memory_curve;          // of the traced step; empty without run.trace_step
};

/// A run: plan, data, one RankModel per rank. Built once, run once.
/// Threads: one at a time; run() makes one thread per rank.
class Trainer {
 public:
  /// Plans, opens the data, allocates and initialises the model. `resume`: continue from the newest
  /// complete checkpoint in run.dir, if there is one.
  /// Throws: InvalidArgument, Failure (data, checkpoint).
  Trainer(const RunConfig& config, bool resume);
  ~Trainer();

  const RunConfig& config() const { return config_; }
  const RunPlan& plan() const { return plan_; }
  /// GEMM rate of all ranks together in FLOP/s, measured at start: the base of MFU.
  double peak_flops_per_second() const { return peak_flops_per_second_; }
  /// Step the run continues after; 0 for a fresh one.
  std::int64_t first_step() const { return first_step_; }

  /// One line on the data, and what a resumed run does differently from the one it continues.
  const std::string& data_summary() const { return data_summary_; }
  const std::vector<std::string>& notes() const { return notes_; }

  /// Trains to train.steps. A checkpoint is written every checkpoint_every steps and at the end.
  /// Throws: what a rank threw first; the last checkpoint stays usable.
  TrainResult run(const TrainEvents& events);

  /// Tokens and targets of the first step, for every rank: what checks run on.
  StepBatch first_batch() const;

  /// The ranks' models, for tests and checks; not while run() runs.
  const std::vector<std::unique_ptr<RankModel>>& ranks() { return ranks_; }

 private:
  struct Shared;  // what the rank threads of one run() write

  void open_data();
  void load_weights();
  void load_latest_checkpoint();
  void rank_loop(Transport& transport, const TrainEvents& events, Shared& shared);
  bool train_step(Engine& engine, RankModel& model, Transport& transport, bool stop,
                  StepReport& report);
  double validate(Engine& evaluator, Transport& transport) const;
  StepBatch read_batch(const BatchPlan& plan, std::int64_t first_sample, bool needs_tokens,
                       bool needs_targets) const;
  StepBatch rank_batch(const BatchPlan& plan, std::int64_t first_sample, int rank) const;
  std::int64_t sample_of_step(std::int64_t step) const {
    return first_sample_ + (step - 1 - first_step_) * config_.global_batch();
  }
  void save(std::int64_t step, Transport& transport, const TrainEvents& events);

  RunConfig config_;
  double peak_flops_per_second_ = 0.0;
  RunPlan plan_;
  c10::Device device_;
  std::unique_ptr<BatchPlan> training_;
  std::unique_ptr<BatchPlan> validation_;  // null: no validation data
  std::int64_t num_validation_batches_ = 0;
  std::string data_digest_;
  std::string data_summary_;
  std::vector<std::string> notes_;
  std::vector<std::unique_ptr<RankModel>> ranks_;
  std::vector<std::unique_ptr<FarStore>> far_stores_;  // per rank; null: nothing is copied out
  std::int64_t first_step_ = 0;                        // steps done before this run
  std::int64_t first_sample_ = 0;                      // first sequence this run trains on
};

}  // namespace sluice
