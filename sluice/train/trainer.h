// trainer.h - a training run: all of its ranks as threads of this process, or this process's rank
// of a job. Read next: rank_model.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/runtime/engine.h"
#include "sluice/train/checkpoint.h"
#include "sluice/train/config.h"
#include "sluice/train/metrics.h"
#include "sluice/train/offload_setup.h"
#include "sluice/train/plan.h"
#include "sluice/train/rank_model.h"
#include "sluice/train/saver.h"
#include "sluice/train/step_data.h"

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

/// What happens while a run goes on. Called on rank 0's thread, and so in its process alone; may be
/// empty.
struct TrainEvents {
  std::function<void(const StepReport&)> step;
  std::function<void(std::int64_t step, double loss)> validation;
  std::function<void(const std::string& line)> note;  // what the run has decided
  /// Called after each step for every rank, on its own thread and in its process.
  std::function<void(const RankMetrics&)> rank_step;
  std::function<void(std::int64_t step, const std::filesystem::path& folder)> checkpoint;
  /// Asked in every process, on the thread of its first rank, in each step; true on any: save and
  /// end.
  std::function<bool()> stop;
};

struct TrainResult {
  std::int64_t last_step = 0;
  std::optional<StepReport> last;
  std::optional<double> validation_loss;  // of the last validation
  bool stopped = false;                   // by TrainEvents::stop
  Timeline measured;                      // of the traced step, else of the fastest one
  std::int64_t measured_step = 0;
  Program program;                   // that the measured step ran
  std::vector<MemoryPeaks> memory;   // per rank of a pipeline, over all its steps and pipelines
  std::vector<CopyCounters> copies;  // per rank of the first pipeline, with the program that stayed
  MemoryCurve memory_curve;          // of the traced step; empty without run.trace_step
};

/// A run: plan, data, one RankModel per rank of this process. Built once, run once.
/// Threads: one at a time; the constructor and run() make one thread per rank.
class Trainer {
 public:
  /// Plans, opens the data, allocates and initialises the model. `resume`: continue from the newest
  /// complete checkpoint in run.dir, if there is one.
  /// Throws: InvalidArgument, Failure (data, checkpoint).
  Trainer(const RunConfig& config, bool resume);

  /// The same for a run of several processes. `world` are transports of the ranks that this process
  /// runs, ascending; of size config.num_ranks(). All processes construct together, and errors are
  /// thrown on all of them alike. `gpu` is this process's, as it counts.
  Trainer(const RunConfig& config, bool resume, std::vector<std::unique_ptr<Transport>> world,
          int gpu = 0);
  ~Trainer();

  const RunConfig& config() const { return config_; }
  /// After run() that of the program that stayed.
  const RunPlan& plan() const { return plan_; }
  /// GEMM rate of all ranks together in FLOP/s, measured at start: the base of MFU.
  double peak_flops_per_second() const { return peak_flops_per_second_; }
  /// Step the run continues after; 0 for a fresh one.
  std::int64_t first_step() const { return first_step_; }

  /// One line on the data, and what a resumed run does differently from the one it continues.
  const std::string& data_summary() const { return data_->summary(); }
  const std::vector<std::string>& notes() const { return notes_; }

  /// Whether rank 0 is here: the one that reports.
  bool leads() const { return world_.front()->rank() == 0; }

  /// The first rank that runs here; ranks() follow from it.
  int first_rank() const { return world_.front()->rank(); }

  /// Trains to train.steps. A checkpoint is written every checkpoint_every steps and at the end.
  /// The result is whole where leads(). Throws: what a rank threw first; the last checkpoint stays
  /// usable.
  TrainResult run(const TrainEvents& events);

  /// Tokens and targets of the first step, for every rank: what checks run on.
  StepBatch first_batch() const;

  /// The models of this process's ranks, for tests and checks; not while run() runs.
  const std::vector<std::unique_ptr<RankModel>>& ranks() { return ranks_; }

 private:
  struct Shared;  // what the rank threads of one run() write

  /// What ranks tell each other in a step; of all of them, whether any said so.
  struct RankFlags {
    bool stop = false;     // asked to save and end
    bool writing = false;  // its part of a checkpoint is still being written
  };

  void connect();
  void open_channels();
  void prepare(bool resume);
  void load_weights();
  void load_latest_checkpoint();
  bool all_here() const { return world_.size() == static_cast<std::size_t>(config_.num_ranks()); }
  /// Place of a rank among those of this process.
  std::size_t own_of(const Transport& world) const {
    return static_cast<std::size_t>(world.rank() - world_.front()->rank());
  }
  RankLinks links(std::size_t own) const;
  void rank_loop(std::size_t own, const TrainEvents& events, Shared& shared);
  RankFlags train_step(Engine& engine, std::size_t own, const RankFlags& mine, StepReport& report);
  double validate(Engine& evaluator, std::size_t own) const;
  StepBatch rank_batch(StepData::Part part, std::int64_t first_sample, std::size_t own) const;
  std::int64_t sample_of_step(std::int64_t step) const {
    return first_sample_ + (step - 1 - first_step_) * config_.global_batch();
  }
  void save(std::int64_t step, std::size_t own, const TrainEvents& events, bool last);
  void finish_save(std::size_t own, const TrainEvents& events);
  CheckpointContents contents_of_save(std::int64_t step) const;

  RunConfig config_;
  // Before the transports: after an error these may hold tensors that the ledgers in here count.
  std::vector<std::unique_ptr<RankModel>> ranks_;
  // By rank of this process; replicas_ is empty where there is one pipeline.
  std::vector<std::unique_ptr<Transport>> world_;
  std::vector<std::unique_ptr<Transport>> pipelines_;
  std::vector<std::unique_ptr<Transport>> replicas_;
  double peak_flops_per_second_ = 0.0;
  CopyRates copy_rates_;
  RanksHere here_;
  RunPlan plan_;
  c10::Device device_;
  Saver saver_;
  std::optional<StepData> data_;  // once opened
  std::vector<std::string> notes_;
  /// Per program of the first steps, by rank here; null: nothing is copied out.
  std::vector<std::vector<std::unique_ptr<FarStore>>> far_stores_;
  std::int64_t first_step_ = 0;    // steps done before this run
  std::int64_t first_sample_ = 0;  // first sequence this run trains on
};

}  // namespace sluice
