#include "sluice/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "sluice/comm/agree.h"
#include "sluice/comm/local.h"
#include "sluice/comm/peers.h"
#include "sluice/common/errors.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/clock.h"
#include "sluice/runtime/device.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/train/calibrate.h"
#include "sluice/train/channels.h"
#include "sluice/train/checkpoint.h"
#include "sluice/train/program_trial.h"
#include "sluice/train/rank_records.h"
#include "sluice/train/replan.h"
#include "sluice/train/tensors.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// A rank does not reach the FLOP rate of bare products: norms, rotary, attention and the loss take
// their part. Only the prediction before the first measured step uses it.
constexpr double kAssumedEfficiency = 0.8;

std::vector<std::unique_ptr<Transport>> make_transports(const RunConfig& config) {
  return make_local_transports(config.num_ranks(), {.timeout = config.run.timeout()});
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

/// The programs that the first steps choose from.
std::vector<const Program*> programs_to_try(const RunPlan& plan) {
  std::vector<const Program*> programs = {&plan.program};
  if (plan.exchanging) programs.push_back(&plan.exchanging->program);
  return programs;
}

CopyRates slowest(const std::vector<std::vector<double>>& rates) {
  CopyRates least{rates[0][0], rates[0][1], rates[0][2]};
  for (const auto& one : rates) {
    least = {std::min(least.out, one[0]), std::min(least.in, one[1]), std::min(least.both, one[2])};
  }
  return least;
}

/// Time in compute passes; spans are in nanoseconds.
double seconds_of_passes(const std::vector<Span>& spans) {
  std::int64_t total_ns = 0;
  for (const Span& span : spans) {
    if (span.kind == ActionKind::kPass && span.lane == Lane::kCompute) {
      total_ns += span.end - span.begin;
    }
  }
  return 1e-9 * static_cast<double>(total_ns);
}

std::string exchange_decision(const ProgramTrial& trial) {
  return fmt::format(
      "attention exchange: {:.3f} s a step with it, {:.3f} s without: the run goes on {} it",
      trial.seconds_of(1), trial.seconds_of(0), trial.current() == 1 ? "with" : "without");
}

}  // namespace

/// Each rank writes its own entries; run() reads them after the threads have ended.
struct Trainer::Shared {
  TrainResult result;  // scalars: rank 0
  RankRecords records;
  const Program* measured = nullptr;  // what the measured step ran; rank 0
  const Program* recorded = nullptr;  // what the records are of; first rank here
  Replanner replanner;
};

Trainer::Trainer(const RunConfig& config, bool resume)
    : Trainer(config, resume, make_transports(config)) {}

Trainer::Trainer(const RunConfig& config, bool resume,
                 std::vector<std::unique_ptr<Transport>> world, int gpu)
    : config_(config),
      world_(std::move(world)),
      device_(parse_device(config.run.device, gpu)),
      saver_({.folder = std::filesystem::path(config.run.dir) / "checkpoints",
              .keep = config.run.keep_checkpoints,
              .background = config.run.background_checkpoints},
             world_.size()) {
  install_ledger_allocator();
  use_device(device_);
  const RankThreadInit init;
  SLUICE_CHECK(world_.front()->size() == config_.num_ranks(), "{} ranks for a run of {}",
               world_.front()->size(), config_.num_ranks());
  connect();
  if (device_.is_cpu()) {
    peak_flops_per_second_ = measure_gemm_rate(
        world_, config_.model,
        config_.data.sequence_length / config_.pipeline.slices * config_.pipeline.microbatch_size);
  }
  // The slowest rank's rates for all, so that all make the same plan.
  const int num_here = static_cast<int>(world_.size());
  const CopyRates mine = measure_copy_rates(config_.pipeline, num_here);
  const double machine = to_doubles(this_process()).front();
  run_ranks(world_, [&](Transport& rank) {
    const auto all = rank.all_gather(std::vector{mine.out, mine.in, mine.both, machine});
    if (&rank != world_.front().get()) return;
    copy_rates_ = slowest(all);
    const auto num_near =
        std::count_if(all.begin(), all.end(), [&](const auto& one) { return one[3] == machine; });
    here_ = {rank.rank(), num_here, static_cast<int>(num_near) / num_here};
  });
  // From here every rank works by itself: what fails is told to all.
  std::exception_ptr error;
  try {
    prepare(resume);
  } catch (...) {
    if (all_here()) throw;
    error = std::current_exception();
  }
  if (all_here()) return;
  agree(*world_.front(), error);
  for (const auto& one :
       world_.front()->all_gather(std::vector{static_cast<double>(first_step_)})) {
    if (one[0] == static_cast<double>(first_step_)) continue;
    throw Failure(fmt::format(
        "some ranks found the checkpoint of step {} in {} and others that of step {}: put run.dir "
        "on a disk that all machines share",
        first_step_, config_.run.dir, one[0]));
  }
  open_channels();
}

Trainer::~Trainer() = default;

/// Ranks are numbered pipeline by pipeline.
void Trainer::connect() {
  const int pipeline_ranks = config_.pipeline.ranks;
  pipelines_.resize(world_.size());
  if (config_.parallel.data > 1) replicas_.resize(world_.size());
  if (replicas_.empty()) return;
  run_ranks(world_, [&](Transport& world) {
    const std::size_t own = own_of(world);
    pipelines_[own] = world.split(world.rank() / pipeline_ranks);
    replicas_[own] = world.split(world.rank() % pipeline_ranks);
  });
}

/// Of the one rank that a process of several has.
void Trainer::open_channels() {
  std::vector<const Program*> programs = programs_to_try(plan_);
  programs.push_back(&plan_.evaluation);
  const RankLinks link = links(0);
  link.pipeline.open(pipeline_channels(programs, config_.model.tie_word_embeddings));
  if (!replicas_.empty()) link.replicas.open(replica_channels(link.replicas.size()));
}

RankLinks Trainer::links(std::size_t own) const {
  Transport& world = *world_[own];
  if (replicas_.empty()) return {world, world, world};
  return {world, *pipelines_[own], *replicas_[own]};
}

void Trainer::prepare(bool resume) {
  const double rank_rate =
      peak_flops_per_second_ > 0.0
          ? kAssumedEfficiency * peak_flops_per_second_ / static_cast<double>(config_.num_ranks())
          : 1e14;
  plan_ = make_plan(config_, rank_rate, copy_rates_);
  data_.emplace(config_, device_);
  for (const auto& world : world_) {
    const int rank = world->rank() % config_.pipeline.ranks;
    const Shard shard{world->rank() / config_.pipeline.ranks, config_.parallel.data};
    ranks_.push_back(
        std::make_unique<RankModel>(config_.model, plan_.layout, plan_.schedule.placement, rank,
                                    device_, static_cast<std::uint64_t>(config_.run.seed), shard));
  }
  for (const Program* program : programs_to_try(plan_)) {
    far_stores_.push_back(
        make_stores_here(config_.pipeline, *program, movable_bytes(plan_.memory), here_));
  }
  if (!config_.model_weights.empty()) load_weights();
  if (resume) load_latest_checkpoint();
}

TrainResult Trainer::run(const TrainEvents& events) {
  Shared shared{.replanner = Replanner(config_, plan_, here_)};
  shared.records.resize(ranks_.size());
  shared.result.last_step = first_step_;
  run_ranks(world_, [&](Transport& world) {
    const std::size_t own = own_of(world);
    rank_loop(own, events, shared);
    if (!all_here()) shared.records = gather_records(world, shared.records);
  });
  TrainResult result = std::move(shared.result);
  if (shared.measured != nullptr) result.program = *shared.measured;
  if (shared.replanner.plan() && shared.recorded == &shared.replanner.plan()->program) {
    plan_ = shared.replanner.take_plan();
  } else if (plan_.exchanging && shared.recorded == &plan_.exchanging->program) {
    adopt_exchange(plan_);
  }
  const auto pipeline_ranks = static_cast<std::size_t>(config_.pipeline.ranks);
  RankRecords& records = shared.records;
  if (records.size() >= pipeline_ranks) {
    for (std::size_t i = pipeline_ranks; i < records.size(); ++i) {
      merge_peaks(records[i % pipeline_ranks].memory, records[i].memory);
    }
    records.resize(pipeline_ranks);
  }
  result.measured.name = plan_.schedule.name;
  result.measured.seconds_per_tick = 1e-9;
  result.measured.num_slices = plan_.program.num_slices;
  result.measured.num_stages = plan_.program.num_stages();
  for (RankRecord& record : records) {
    result.memory.push_back(record.memory);
    result.copies.push_back(record.copies);
    result.measured.ranks.push_back(std::move(record.spans));
    result.memory_curve.ranks.push_back(std::move(record.samples));
  }
  return result;
}

void Trainer::rank_loop(std::size_t own, const TrainEvents& events, Shared& shared) {
  use_device(device_);
  const RankLinks link = links(own);
  const int rank = link.world.rank();
  RankModel& model = *ranks_[own];
  RankRecord& record = shared.records[own];
  const VocabSetup vocabulary{.layers = model.vocabulary(),
                              .keep_probabilities = plan_.keep_probabilities};
  std::vector<const Program*> programs = programs_to_try(plan_);
  std::vector<std::unique_ptr<Engine>> engines(programs.size());
  const auto make_engine = [&](std::size_t program) {
    engines[program] = std::make_unique<Engine>(
        *programs[program], model.stages(), link.pipeline, model.ledger(),
        EngineOffload{far_stores_[program][own].get(), config_.run.check_offload}, vocabulary);
  };
  for (std::size_t program = 0; program < programs.size(); ++program) make_engine(program);
  ProgramTrial trial(engines.size());
  OffloadWatch watch(plan_.copies.asked);
  const Program* recorded = nullptr;  // that `record` and `fastest` are of
  Engine evaluator(plan_.evaluation, model.stages(), link.pipeline, model.ledger(), {}, vocabulary);
  model.spread_tied(link.pipeline);

  const TrainConfig& train = config_.train;
  double fastest = 0.0;
  bool stopped = false;
  std::int64_t step = first_step_;
  while (step < train.steps && !stopped) {
    ++step;
    const auto begin = Clock::now();
    const std::int64_t begin_ns = now_ns();
    const bool traced = step == config_.run.trace_step;
    model.ledger().reset_peaks();
    model.ledger().record(traced);
    StepReport report{.step = step};
    const bool stop_asked = own == 0 && events.stop && events.stop();
    const std::size_t program = trial.current();
    const bool counts = trial.decided() || program == 0;
    Engine& engine = *engines[program];
    const RankFlags any = train_step(engine, own, {stop_asked, saver_.writing(own)}, report);
    stopped = any.stop;
    report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    model.ledger().record(false);
    if (events.rank_step) {
      events.rank_step({.step = step,
                        .rank = rank,
                        .step_seconds = report.seconds,
                        .compute_seconds = seconds_of_passes(engine.spans()),
                        .peak_bytes = model.ledger().peaks().total});
    }

    // What is reported is of the program that stays.
    if (counts && std::exchange(recorded, programs[program]) != programs[program]) {
      record.memory = {};
      fastest = 0.0;
    }
    if (counts) {
      merge_peaks(record.memory, model.ledger().peaks());
      record.copies = engine.copies();
    }
    // The traced step, or without one the fastest: rank 0's clock decides for all.
    const double seconds = link.world.all_gather(std::vector{report.seconds})[0][0];
    const bool measured =
        config_.run.trace_step > 0 ? traced : counts && (fastest == 0.0 || seconds < fastest);
    if (measured) {
      fastest = seconds;
      record.begin = begin_ns;
      record.spans = engine.spans();
      if (traced) record.samples = model.ledger().take_samples();
      if (rank == 0) {
        shared.result.measured_step = step;
        shared.measured = programs[program];
      }
    }
    if (rank == 0) {
      shared.result.last = report;
      if (events.step) events.step(report);
    }
    const bool last = step == train.steps || stopped;
    if (!last && trial.decided() && !watch.done()) {
      watch.add(engine, *programs[program]);
      if (watch.done()) {
        if (shared.replanner.decide(link.world, program == 1, watch)) {
          programs[program] = &shared.replanner.plan()->program;
          engines[program].reset();
          far_stores_[program][own] = shared.replanner.take_store(own);
          link.pipeline.open(pipeline_channels({programs[program]}, false));
          make_engine(program);
        }
        if (rank == 0 && events.note) events.note(shared.replanner.note());
      }
    }
    if (!trial.decided()) {
      trial.add(seconds);
      if (trial.decided()) {
        engines[1 - trial.current()].reset();
        far_stores_[1 - trial.current()][own].reset();
        if (rank == 0 && events.note) events.note(exchange_decision(trial));
      }
    }
    if (saver_.under_way(own) && !any.writing) finish_save(own, events);
    if (data_->num_validation_batches() > 0 &&
        (last || (train.eval_every > 0 && step % train.eval_every == 0))) {
      const double loss = validate(evaluator, own);
      if (rank == 0) {
        shared.result.validation_loss = loss;
        if (events.validation) events.validation(step, loss);
      }
    }
    if (last || (train.checkpoint_every > 0 && step % train.checkpoint_every == 0)) {
      save(step, own, events, last);
    }
  }
  if (own == 0) shared.recorded = recorded;
  if (rank == 0) {
    shared.result.last_step = step;
    shared.result.stopped = stopped;
  }
}

Trainer::RankFlags Trainer::train_step(Engine& engine, std::size_t own, const RankFlags& mine,
                                       StepReport& report) {
  const TrainConfig& train = config_.train;
  const RankLinks link = links(own);
  const StepBatch batch = rank_batch(StepData::Part::kTraining, sample_of_step(report.step), own);
  report.learning_rate = learning_rate_at(report.step, train.steps, train.warmup_steps,
                                          train.learning_rate, train.min_learning_rate);
  report.num_tokens = config_.global_batch() * config_.data.sequence_length;
  const AdamOptions adam{.beta1 = train.beta1,
                         .beta2 = train.beta2,
                         .epsilon = train.epsilon,
                         .weight_decay = train.weight_decay};
  RankFlags any;
  const auto optimizer = [&](const std::vector<LossSum>& losses) {
    LossTotal own_loss;
    own_loss.add(losses);
    const UpdateResult update =
        ranks_[own]->update(link, adam, report.learning_rate, train.grad_clip, report.step,
                            {own_loss.cross_entropy, own_loss.num_targets, mine.stop ? 1.0 : 0.0,
                             mine.writing ? 1.0 : 0.0});
    LossTotal total;
    for (const auto& share : update.shared) {
      total.cross_entropy += share[0];
      total.num_targets += share[1];
      any.stop = any.stop || share[2] != 0.0;
      any.writing = any.writing || share[3] != 0.0;
    }
    report.loss = total.cross_entropy / std::max(1.0, total.num_targets);
    report.gradient_norm = update.gradient_norm;
  };
  Engine::StageDone stage_done;
  if (!replicas_.empty()) {
    stage_done = [&](std::size_t chunk) { ranks_[own]->begin_reduction(chunk, link.replicas); };
  }
  engine.run(batch, optimizer, stage_done);
  return any;
}

double Trainer::validate(Engine& evaluator, std::size_t own) const {
  LossTotal mine;
  for (std::int64_t i = 0; i < data_->num_validation_batches(); ++i) {
    mine.add(evaluator.run(rank_batch(StepData::Part::kValidation, i * config_.global_batch(), own),
                           {}));
  }
  LossTotal total;
  for (const auto& share :
       world_[own]->all_gather(std::vector{mine.cross_entropy, mine.num_targets})) {
    total.cross_entropy += share[0];
    total.num_targets += share[1];
  }
  return total.cross_entropy / std::max(1.0, total.num_targets);
}

StepBatch Trainer::first_batch() const {
  return data_
      ->read({.part = StepData::Part::kTraining,
              .first_sample = first_sample_,
              .num_microbatches = config_.microbatches_per_pipeline()})
      .batch;
}

/// The rank's part of the global batch: the microbatches of its pipeline.
StepBatch Trainer::rank_batch(StepData::Part part, std::int64_t first_sample,
                              std::size_t own) const {
  const Placement& placement = plan_.schedule.placement;
  const RankLinks link = links(own);
  const int rank = link.pipeline.rank(), count = config_.microbatches_per_pipeline();
  const int data_index = link.world.rank() / config_.pipeline.ranks;
  const bool everywhere = plan_.schedule.vocab != VocabForm::kLast;
  const bool needs_targets = everywhere || placement.rank_of(placement.num_stages() - 1) == rank;
  StepData::Batch mine =
      data_->read({.part = part,
                   .first_sample = first_sample + std::int64_t{data_index} * count *
                                                      config_.pipeline.microbatch_size,
                   .num_microbatches = count,
                   .tokens = everywhere || placement.rank_of(0) == rank,
                   .targets = needs_targets});
  if (needs_targets && !replicas_.empty()) {
    // The loss is a mean over the global batch.
    double all = 0.0;
    for (const auto& one :
         link.replicas.all_gather(std::vector{static_cast<double>(mine.num_targets)})) {
      all += one[0];
    }
    mine.batch.loss.scale = 1.0 / std::max(1.0, all);
  }
  return std::move(mine.batch);
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
  for (const std::string& note : check_resume(checkpoint.state, config_, data_->digest())) {
    notes_.push_back(note);
  }
  const std::int64_t step = checkpoint.state.step;
  for (const auto& rank : ranks_) {
    for (Parameter* parameter : rank->parameters()) {
      load_parameter(checkpoint.weights, *parameter);
    }
    for (TrainedParameter& trained : rank->trained()) {
      load_state_part(checkpoint.optimizer, *trained.parameter, rank->shard(), trained.state);
    }
  }
  first_step_ = step;
  first_sample_ = checkpoint.state.next_sample;
  notes_.push_back(fmt::format("continuing after step {} from {}", step, latest.path->string()));
}

CheckpointContents Trainer::contents_of_save(std::int64_t step) const {
  CheckpointContents contents;
  const std::int64_t next_sample = sample_of_step(step + 1);
  contents.state = make_state(config_, step, next_sample,
                              next_sample * config_.data.sequence_length, data_->digest());
  contents.config_toml = to_toml(config_);
  return contents;
}

void Trainer::save(std::int64_t step, std::size_t own, const TrainEvents& events, bool last) {
  if (saver_.under_way(own)) finish_save(own, events);
  saver_.begin(own, *ranks_[own], links(own), contents_of_save(step));
  if (last || !config_.run.background_checkpoints) finish_save(own, events);
}

void Trainer::finish_save(std::size_t own, const TrainEvents& events) {
  const SavedCheckpoint saved = saver_.finish(own, links(own));
  if (world_[own]->rank() == 0 && events.checkpoint) events.checkpoint(saved.step, saved.path);
}

}  // namespace sluice
