#include "sluice/train/trainer.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "sluice/comm/local.h"
#include "sluice/common/errors.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/device.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/train/calibrate.h"
#include "sluice/train/checkpoint.h"
#include "sluice/train/tensors.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// A rank does not reach the FLOP rate of bare products: norms, rotary, attention and the loss take
// their part. Only the prediction before the first measured step uses it.
constexpr double kAssumedEfficiency = 0.8;

std::vector<std::unique_ptr<Transport>> make_transports(const RunConfig& config) {
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(config.run.timeout_seconds));
  return make_local_transports(config.pipeline.ranks, {.timeout = timeout});
}

/// Cross entropy per target over all losses of a step.
struct LossTotal {
  double cross_entropy = 0.0;
  double num_targets = 0.0;

  void add(const std::vector<LossSum>& losses) {
    for (const LossSum& loss : losses) {
      cross_entropy += loss.cross_entropy;
      num_targets += static_cast<double>(loss.num_targets);
    }
  }
};

/// The largest of two measurements, class by class.
void merge_peaks(MemoryPeaks& peaks, const MemoryPeaks& more) {
  for (std::size_t i = 0; i < peaks.by_class.size(); ++i) {
    peaks.by_class[i] = std::max(peaks.by_class[i], more.by_class[i]);
  }
  if (more.total > peaks.total) {
    peaks.total = more.total;
    peaks.at_total_peak = more.at_total_peak;
  }
}

}  // namespace

/// Each rank writes its own entries; run() reads them after the threads have ended.
struct Trainer::Shared {
  TrainResult result;  // scalars: rank 0
  std::vector<std::vector<Span>> spans;
  std::vector<std::vector<MemorySample>> samples;
};

Trainer::Trainer(const RunConfig& config, bool resume)
    : config_(config), device_(parse_device(config.run.device)) {
  install_ledger_allocator();
  const RankThreadInit init;
  if (device_.is_cpu()) {
    peak_flops_per_second_ = measure_gemm_rate(
        make_transports(config_), config_.model,
        config_.data.sequence_length / config_.pipeline.slices * config_.pipeline.microbatch_size);
  }
  const double rank_rate = peak_flops_per_second_ > 0.0
                               ? kAssumedEfficiency * peak_flops_per_second_ /
                                     static_cast<double>(config_.pipeline.ranks)
                               : 1e14;
  plan_ = make_plan(config_, rank_rate, measure_copy_rates(config_.pipeline));
  far_stores_ = make_far_stores(config_.pipeline, plan_.program, movable_bytes(plan_.memory));
  open_data();
  for (int rank = 0; rank < config_.pipeline.ranks; ++rank) {
    ranks_.push_back(std::make_unique<RankModel>(config_.model, plan_.layout,
                                                 plan_.schedule.placement, rank, device_,
                                                 static_cast<std::uint64_t>(config_.run.seed)));
  }
  if (!config_.model_weights.empty()) load_weights();
  if (resume) load_latest_checkpoint();
}

Trainer::~Trainer() = default;

TrainResult Trainer::run(const TrainEvents& events) {
  Shared shared;
  shared.spans.resize(ranks_.size());
  shared.samples.resize(ranks_.size());
  shared.result.memory.resize(ranks_.size());
  shared.result.copies.resize(ranks_.size());
  shared.result.last_step = first_step_;
  const auto transports = make_transports(config_);
  run_ranks(transports, [&](Transport& transport) { rank_loop(transport, events, shared); });
  TrainResult result = std::move(shared.result);
  result.measured.name = plan_.schedule.name;
  result.measured.seconds_per_tick = 1e-9;
  result.measured.num_slices = plan_.program.num_slices;
  result.measured.num_stages = plan_.program.num_stages();
  result.measured.ranks = std::move(shared.spans);
  result.memory_curve.ranks = std::move(shared.samples);
  return result;
}

void Trainer::rank_loop(Transport& transport, const TrainEvents& events, Shared& shared) {
  const int rank = transport.rank();
  const auto self = static_cast<std::size_t>(rank);
  RankModel& model = *ranks_[self];
  const VocabSetup vocabulary{.layers = model.vocabulary(),
                              .keep_probabilities = plan_.keep_probabilities};
  Engine engine(plan_.program, model.stages(), transport, model.ledger(),
                {.store = far_stores_[self].get(), .check = config_.run.check_offload}, vocabulary);
  Engine evaluator(plan_.evaluation, model.stages(), transport, model.ledger(), {}, vocabulary);
  model.spread_tied(transport);

  const TrainConfig& train = config_.train;
  double fastest = 0.0;
  bool stopped = false;
  std::int64_t step = first_step_;
  while (step < train.steps && !stopped) {
    ++step;
    const auto begin = Clock::now();
    const bool traced = step == config_.run.trace_step;
    model.ledger().reset_peaks();
    model.ledger().record(traced);
    StepReport report{.step = step};
    const bool stop_asked = rank == 0 && events.stop && events.stop();
    stopped = train_step(engine, model, transport, stop_asked, report);
    report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    model.ledger().record(false);

    merge_peaks(shared.result.memory[self], model.ledger().peaks());
    // The traced step, or without one the fastest: rank 0's clock decides for all.
    const double seconds = transport.all_gather(std::vector{report.seconds})[0][0];
    const bool measured = config_.run.trace_step > 0 ? traced : fastest == 0.0 || seconds < fastest;
    if (measured) {
      fastest = seconds;
      shared.spans[self] = engine.spans();
      if (traced) shared.samples[self] = model.ledger().take_samples();
      if (rank == 0) shared.result.measured_step = step;
    }
    if (rank == 0) {
      shared.result.last = report;
      if (events.step) events.step(report);
    }
    const bool last = step == train.steps || stopped;
    if (validation_ && (last || (train.eval_every > 0 && step % train.eval_every == 0))) {
      const double loss = validate(evaluator, transport);
      if (rank == 0) {
        shared.result.validation_loss = loss;
        if (events.validation) events.validation(step, loss);
      }
    }
    if (last || (train.checkpoint_every > 0 && step % train.checkpoint_every == 0)) {
      save(step, transport, events);
    }
  }
  shared.result.copies[self] = engine.copies();
  if (rank == 0) {
    shared.result.last_step = step;
    shared.result.stopped = stopped;
  }
}

bool Trainer::train_step(Engine& engine, RankModel& model, Transport& transport, bool stop,
                         StepReport& report) {
  const TrainConfig& train = config_.train;
  const StepBatch batch = rank_batch(*training_, sample_of_step(report.step), transport.rank());
  report.learning_rate = learning_rate_at(report.step, train.steps, train.warmup_steps,
                                          train.learning_rate, train.min_learning_rate);
  report.num_tokens = config_.global_batch() * config_.data.sequence_length;
  const AdamOptions adam{.beta1 = train.beta1,
                         .beta2 = train.beta2,
                         .epsilon = train.epsilon,
                         .weight_decay = train.weight_decay};
  bool stopped = false;
  engine.run(batch, [&](const std::vector<LossSum>& losses) {
    LossTotal mine;
    mine.add(losses);
    const UpdateResult update =
        model.update(transport, adam, report.learning_rate, train.grad_clip, report.step,
                     {mine.cross_entropy, mine.num_targets, stop ? 1.0 : 0.0});
    LossTotal total;
    for (const auto& share : update.shared) {
      total.cross_entropy += share[0];
      total.num_targets += share[1];
      stopped = stopped || share[2] != 0.0;
    }
    report.loss = total.cross_entropy / std::max(1.0, total.num_targets);
    report.gradient_norm = update.gradient_norm;
  });
  return stopped;
}

double Trainer::validate(Engine& evaluator, Transport& transport) const {
  LossTotal mine;
  for (std::int64_t i = 0; i < num_validation_batches_; ++i) {
    mine.add(
        evaluator.run(rank_batch(*validation_, i * config_.global_batch(), transport.rank()), {}));
  }
  LossTotal total;
  for (const auto& share :
       transport.all_gather(std::vector{mine.cross_entropy, mine.num_targets})) {
    total.cross_entropy += share[0];
    total.num_targets += share[1];
  }
  return total.cross_entropy / std::max(1.0, total.num_targets);
}

StepBatch Trainer::first_batch() const {
  return read_batch(*training_, first_sample_, /*needs_tokens=*/true, /*needs_targets=*/true);
}

StepBatch Trainer::rank_batch(const BatchPlan& plan, std::int64_t first_sample, int rank) const {
  const Placement& placement = plan_.schedule.placement;
  const bool everywhere = plan_.schedule.vocab != VocabForm::kLast;
  return read_batch(plan, first_sample, everywhere || placement.rank_of(0) == rank,
                    everywhere || placement.rank_of(placement.num_stages() - 1) == rank);
}

StepBatch Trainer::read_batch(const BatchPlan& plan, std::int64_t first_sample, bool needs_tokens,
                              bool needs_targets) const {
  StepBatch batch;
  batch.loss.ignore_index = kIgnoreTarget;
  batch.loss.z_loss = config_.train.z_loss;
  if (!needs_tokens && !needs_targets) return batch;  // only the ends of the pipeline read

  const std::int64_t size = config_.pipeline.microbatch_size;
  const std::int64_t length = config_.data.sequence_length;
  const auto count = static_cast<std::size_t>(size * length);
  std::int64_t num_targets = 0;
  for (int microbatch = 0; microbatch < config_.pipeline.microbatches; ++microbatch) {
    at::Tensor tokens = at::empty({size, length}, at::kLong);
    at::Tensor targets = at::empty({size, length}, at::kLong);
    num_targets +=
        plan.read(first_sample + microbatch * size, {tokens.data_ptr<std::int64_t>(), count},
                  {targets.data_ptr<std::int64_t>(), count});
    if (needs_tokens) batch.tokens_BT.push_back(tokens.to(device_));
    if (needs_targets) batch.targets_BT.push_back(targets.to(device_));
  }
  batch.loss.scale = 1.0 / static_cast<double>(std::max<std::int64_t>(1, num_targets));
  return batch;
}

void Trainer::open_data() {
  const TokenSplit split = open_tokens(config_.data, config_.model.vocab_size);
  data_summary_ = split.summary;
  data_digest_ = split.train.digest();
  const std::int64_t length = config_.data.sequence_length;
  const auto seed = static_cast<std::uint64_t>(config_.run.seed);
  training_ = std::make_unique<BatchPlan>(split.train, length, seed, BatchPlan::Order::kShuffled);
  if (split.validation.num_tokens() <= length || config_.train.validation_batches == 0) return;
  validation_ =
      std::make_unique<BatchPlan>(split.validation, length, seed, BatchPlan::Order::kInOrder);
  const std::int64_t batch = config_.global_batch();
  num_validation_batches_ = std::min(config_.train.validation_batches,
                                     (validation_->num_sequences() + batch - 1) / batch);
}

void Trainer::load_weights() {
  const TensorFiles weights = open_weights(config_.model_weights, config_.model);
  for (const auto& rank : ranks_) {
    for (Parameter* parameter : rank->parameters()) load_parameter(weights, *parameter);
    rank->reset_masters();
  }
}

void Trainer::load_latest_checkpoint() {
  const std::filesystem::path folder = std::filesystem::path(config_.run.dir) / "checkpoints";
  const LatestCheckpoint latest = latest_checkpoint(folder);
  notes_ = latest.skipped;
  if (!latest.path) {
    notes_.push_back(
        fmt::format("no checkpoint in {}: starting from the beginning", folder.string()));
    return;
  }
  const Checkpoint checkpoint = open_checkpoint(*latest.path);
  for (const std::string& note : check_resume(checkpoint.state, config_, data_digest_)) {
    notes_.push_back(note);
  }
  const std::int64_t step = checkpoint.state.step;
  for (const auto& rank : ranks_) {
    for (Parameter* parameter : rank->parameters()) {
      load_parameter(checkpoint.weights, *parameter);
    }
    for (TrainedParameter& trained : rank->trained()) {
      load_state(checkpoint.optimizer, *trained.parameter, trained.state);
    }
  }
  first_step_ = step;
  first_sample_ = checkpoint.state.next_sample;
  notes_.push_back(fmt::format("continuing after step {} from {}", step, latest.path->string()));
}

void Trainer::save(std::int64_t step, Transport& transport, const TrainEvents& events) {
  transport.barrier();  // every rank has updated
  if (transport.rank() == 0) {
    CheckpointContents contents;
    const std::int64_t next_sample = sample_of_step(step + 1);
    contents.state = make_state(config_, step, next_sample,
                                next_sample * config_.data.sequence_length, data_digest_);
    contents.config_toml = to_toml(config_);
    ShardedParameters shards;
    for (const auto& rank : ranks_) {
      for (const TrainedParameter& trained : rank->trained()) {
        if (trained.parameter->spec.full_rows > 0) {
          shards[trained.parameter->spec.name].emplace_back(trained.parameter, &trained.state);
          continue;
        }
        add_to_checkpoint(*trained.parameter, trained.state, contents.weights, contents.optimizer);
      }
    }
    add_to_checkpoint(shards, contents.weights, contents.optimizer);
    const auto folder = write_checkpoint(std::filesystem::path(config_.run.dir) / "checkpoints",
                                         contents, config_.run.keep_checkpoints);
    if (events.checkpoint) events.checkpoint(step, folder);
  }
  transport.barrier();  // nobody changes the tensors before they are written
}

}  // namespace sluice
