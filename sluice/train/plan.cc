#include "sluice/train/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/accounting.h"
#include "sluice/model/vocab_shard.h"
#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/exchange_cost.h"
#include "sluice/sim/vocab_plan.h"
#include "sluice/trace/grid.h"

namespace sluice {
namespace {

constexpr double kNanosecond = 1e-9;

std::size_t row(PassKind kind) { return static_cast<std::size_t>(kind); }

CostModel costs_from_flops(const RunConfig& config, const Layout& layout, double flops_per_second) {
  CostModel cost;
  cost.num_stages = static_cast<int>(layout.size());
  cost.num_slices = config.pipeline.slices;
  cost.unit_per_tick = kNanosecond;
  const auto ticks = [&](double flops) {
    return std::max<std::int64_t>(1, std::llround(flops / flops_per_second / kNanosecond));
  };
  const std::int64_t tokens = config.data.sequence_length / cost.num_slices;
  for (const StageLayers& layers : layout) {
    for (int slice = 0; slice < cost.num_slices; ++slice) {
      const StageFlops flops =
          slice_flops(config.model, layers, config.pipeline.microbatch_size, tokens, slice);
      cost.ticks[row(PassKind::kForward)].push_back(ticks(flops.forward));
      cost.ticks[row(PassKind::kBackwardInput)].push_back(ticks(flops.backward_input));
      cost.ticks[row(PassKind::kBackwardWeight)].push_back(ticks(flops.backward_weight));
      cost.ticks[row(PassKind::kBackward)].push_back(
          ticks(flops.backward_input + flops.backward_weight));
      // Backward multiplies attention by 2.5, all of it for the input. Rounded down, so that no
      // pass has more to lend than it takes.
      const auto half =
          static_cast<std::int64_t>(flops.half_slice / flops_per_second / kNanosecond);
      cost.half_ticks[row(PassKind::kForward)].push_back(half);
      cost.half_ticks[row(PassKind::kBackwardInput)].push_back(half * 5 / 2);
      cost.half_ticks[row(PassKind::kBackward)].push_back(half * 5 / 2);
    }
  }
  return cost;
}

ExchangeMode exchange_mode(const RunConfig& config) {
  const std::string& exchange = config.pipeline.exchange;
  if (exchange == "pairwise") return ExchangeMode::kPairwise;
  const bool tries = exchange == "auto" && config.pipeline.slices > 1 && can_halve_slices(config);
  return exchange == "balanced" || tries ? ExchangeMode::kBalanced : ExchangeMode::kNone;
}

/// Between threads nothing is copied, so that an exchange costs only the ranks' waiting for each
/// other in every layer.
ExchangeLink thread_link(const Layout& layout) {
  constexpr std::int64_t kTicksPerTransfer = 50'000;
  int most_layers = 0;
  for (const StageLayers& layers : layout) most_layers = std::max(most_layers, layers.num_layers);
  return {.per_half = 0, .per_transfer = kTicksPerTransfer * most_layers};
}

ScheduleRequest request_of(const RunConfig& config) {
  const PipelineConfig& pipeline = config.pipeline;
  return {.ranks = pipeline.ranks,
          .microbatches = config.microbatches_per_pipeline(),
          .chunks = pipeline.chunks,
          .slices = pipeline.slices,
          .group = pipeline.group,
          .ticks = {}};
}

std::vector<int> rank_of_stages(const Placement& placement) {
  std::vector<int> ranks;
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    ranks.push_back(placement.rank_of(stage));
  }
  return ranks;
}

void check_program(const Program& program) {
  const auto problems = verify(program);
  if (!problems.empty()) {
    throw InternalError(fmt::format("the program of schedule {} fails its proof: {}", program.name,
                                    problems.front().text));
  }
}

Program lower_and_verify(const Schedule& schedule) {
  Program program = lower(schedule);
  check_program(program);
  return program;
}

std::int64_t weight_size(DType dtype) {
  return dtype == DType::kBFloat16 ? 2 : dtype == DType::kFloat32 ? 4 : 8;
}

/// Both moments and, for a bf16 weight, its fp32 master.
std::int64_t optimizer_bytes(std::int64_t num_elements, DType dtype) {
  const std::int64_t state_size = dtype == DType::kFloat64 ? 8 : 4;
  return num_elements * state_size * (dtype == DType::kBFloat16 ? 3 : 2);
}

}  // namespace

MemoryModel memory_model(const ModelConfig& model, const Layout& layout, const Placement& placement,
                         std::int64_t batch, std::int64_t tokens, int num_slices) {
  MemoryModel memory;
  for (const StageLayers& layers : layout) {
    const StageBytes bytes = stage_bytes(model, layers, batch, tokens, num_slices);
    StageMemory stage;
    stage.weights = bytes.weights;
    stage.gradients = bytes.gradients;
    stage.optimizer = optimizer_bytes(bytes.weights / weight_size(model.dtype), model.dtype);
    stage.saved = bytes.saved;
    stage.saved_for_weight = bytes.saved_for_weight;
    stage.movable = bytes.saved;
    stage.boundary_input = layers.has_embedding ? 0 : bytes.boundary;
    stage.boundary_output = layers.has_head ? 0 : bytes.boundary;
    stage.workspace_forward = bytes.workspace_forward;
    stage.workspace_backward = bytes.workspace_backward;
    stage.workspace_backward_input = bytes.workspace_backward_input;
    stage.workspace_backward_weight = bytes.workspace_backward_weight;
    stage.peak_saved_backward_input = bytes.peak_saved_backward_input;
    stage.peak_forward = bytes.peak_forward;
    stage.peak_backward = bytes.peak_backward;
    stage.peak_backward_input = bytes.peak_backward_input;
    stage.kv_cache = bytes.kv_cache;
    stage.kv_gradient = bytes.kv_gradient;
    stage.last_slice = {bytes.last_slice.kv_gradient, bytes.last_slice.workspace_backward,
                        bytes.last_slice.workspace_backward_input, bytes.last_slice.peak_backward,
                        bytes.last_slice.peak_backward_input};
    memory.stages.push_back(stage);
  }
  if (model.tie_word_embeddings && layout.back().has_head) {
    // The output layer has a gradient of its own but no optimizer state, and on the embedding's
    // rank no weight either.
    const std::int64_t matrix = model.vocab_size * model.hidden_size;
    memory.stages.back().optimizer -= optimizer_bytes(matrix, model.dtype);
    if (placement.rank_of(0) == placement.rank_of(placement.num_stages() - 1)) {
      memory.stages.back().weights -= matrix * weight_size(model.dtype);
    }
  }
  return memory;
}

std::vector<std::int64_t> movable_bytes(const MemoryModel& memory) {
  std::vector<std::int64_t> bytes;
  for (const StageMemory& stage : memory.stages) bytes.push_back(stage.movable);
  return bytes;
}

namespace {

VocabForm form_of(const std::string& vocab) {
  return vocab == "parallel-1"   ? VocabForm::kParallel1
         : vocab == "parallel-2" ? VocabForm::kParallel2
                                 : VocabForm::kLast;
}

/// Tokens of one pass of a sharded vocabulary layer, and its rows.
struct ShardShape {
  double tokens = 0.0, rows = 0.0, hidden = 0.0;
};

ShardShape shard_shape(const RunConfig& config, int rank) {
  const PipelineConfig& pipeline = config.pipeline;
  return {static_cast<double>(pipeline.microbatch_size) *
              static_cast<double>(config.data.sequence_length) / pipeline.slices,
          static_cast<double>(vocab_rows(config.model.vocab_size, pipeline.ranks, rank).count),
          static_cast<double>(config.model.hidden_size)};
}

// Products of S and T: the logits, the two gradients, and the logits again where T recomputes them.
void add_shard_costs(const RunConfig& config, VocabForm form, bool keep_probabilities,
                     double flops_per_second, CostModel& cost) {
  const double forward = form == VocabForm::kParallel2 ? 2.0 : 1.0;
  const double backward = 3.0 - forward + (keep_probabilities ? 0.0 : 1.0);
  const auto fill = [&](PassKind kind, double products, double per_element) {
    auto& ticks = cost.ticks[row(kind)];
    ticks.assign(static_cast<std::size_t>(cost.num_stages * cost.num_slices), 0);
    for (int rank = 0; rank < config.pipeline.ranks; ++rank) {
      const ShardShape shape = shard_shape(config, rank);
      const double flops = products * 2.0 * shape.tokens * shape.rows * shape.hidden +
                           per_element * shape.tokens * shape.hidden;
      for (int slice = 0; slice < cost.num_slices; ++slice) {
        ticks[static_cast<std::size_t>(rank * cost.num_slices + slice)] =
            std::max<std::int64_t>(1, std::llround(flops / flops_per_second / kNanosecond));
      }
    }
  };
  fill(PassKind::kVocabForward, forward, 0.0);
  fill(PassKind::kVocabBackward, backward, 0.0);
  fill(PassKind::kEmbedForward, 0.0, 1.0);
  fill(PassKind::kEmbedBackward, 0.0, 1.0);
}

// Keeping saves a third of the products and costs tokens x rows between S and T; worth it while
// that is less than what the shard itself takes.
bool keeps_probabilities(const RunConfig& config) {
  const std::string& keep = config.pipeline.vocab_keep;
  if (keep != "auto") return keep == "probabilities";
  const ShardShape shape = shard_shape(config, 0);
  constexpr double kPending = 2.0, kCopiesOfWeights = 4.0;
  return kPending * shape.tokens <= kCopiesOfWeights * shape.hidden;
}

VocabMemory vocab_memory(const RunConfig& config, VocabForm form, bool keep_probabilities,
                         int rank) {
  const ModelConfig& model = config.model;
  const VocabRows rows = vocab_rows(model.vocab_size, config.pipeline.ranks, rank);
  const std::int64_t tokens =
      config.pipeline.microbatch_size * config.data.sequence_length / config.pipeline.slices;
  const std::int64_t value = weight_size(model.dtype), statistics = value == 8 ? 8 : 4;
  const std::int64_t matrix = rows.count * model.hidden_size;
  const std::int64_t x = tokens * model.hidden_size;
  const std::int64_t step = vocab_tile_columns(rows.count);
  const std::int64_t num_tiles = step == 0 ? 0 : (rows.count + step - 1) / step;
  VocabMemory memory;
  const int num_matrices = model.tie_word_embeddings ? 1 : 2;
  memory.weights = num_matrices * matrix * value;
  memory.gradients = 2 * matrix * statistics;
  memory.optimizer = num_matrices * optimizer_bytes(matrix, model.dtype);
  memory.embedded = x * value / config.pipeline.ranks;
  memory.saved = x * value;
  if (keep_probabilities) {
    memory.saved += tokens * rows.count * value + num_tiles * tokens * statistics;
  }
  memory.statistics = 3 * tokens * statistics;
  memory.token_loss = (4 + config.pipeline.ranks) * tokens * statistics;
  memory.hidden_gradient =
      (x + (form == VocabForm::kParallel2 ? x / config.pipeline.ranks : 0)) * statistics;
  // A tile of logits; in another type than the model's also what its product takes, and the tile in
  // the model's type.
  const bool converts = value != statistics;
  const std::int64_t tile = tokens * step * statistics;
  const std::int64_t operands = converts ? (x + step * model.hidden_size) * statistics : 0;
  const std::int64_t converted = converts ? tokens * step * value : 0;
  const bool in_place = keep_probabilities && !converts;
  memory.workspace_forward = in_place ? 0 : tile + operands + (keep_probabilities ? 0 : converted);
  memory.workspace_backward = x * value + (keep_probabilities ? 0 : tile + operands + converted);
  if (form == VocabForm::kParallel1) {
    memory.workspace_backward += (keep_probabilities ? 2 : 1) * x * statistics;
  }
  return memory;
}

/// A training step of `schedule` with the copies that its link can carry.
PlannedStep plan_step(const RunConfig& config, const CopyRates& rates, const Schedule& schedule,
                      const ExchangePlan& exchange, RunPlan& plan) {
  const std::vector<std::int64_t> bytes = movable_bytes(plan.memory);
  PlannedCopies copies = plan_copies(config, rates, schedule, bytes, exchange, plan.cost);
  require_copies(config, copies, bytes, plan.cost);
  Program program = lower(copies.schedule);
  program.exchange = exchange;
  check_program(program);
  return {std::move(copies.schedule), std::move(program), std::move(copies.decision)};
}

void set_step(RunPlan& plan, PlannedStep step) {
  plan.schedule = std::move(step.schedule);
  plan.program = std::move(step.program);
  plan.copies = std::move(step.copies);
}

void predict(RunPlan& plan) {
  plan.prediction =
      simulate(plan.program, plan.cost,
               {.record_timeline = true, .memory = &plan.memory, .record_memory = true});
}

RunPlan plan_form(const RunConfig& config, VocabForm form, double flops_per_second,
                  const CopyRates& rates) {
  const PipelineConfig& pipeline = config.pipeline;
  RunPlan plan;
  // The placement follows from the schedule's shape alone, the layers from the placement, and the
  // final order of cost-aware schedules from the layers' costs.
  ScheduleRequest request = request_of(config);
  const Placement placement = make_schedule(pipeline.schedule, request).placement;
  plan.layout = parse_layout(pipeline.layers, config.model, rank_of_stages(placement),
                             config.data.sequence_length, form != VocabForm::kLast);
  plan.cost = costs_from_flops(config, plan.layout, flops_per_second);
  plan.cost.link = thread_link(plan.layout);
  request.ticks = to_pass_ticks(plan.cost);
  if (form == VocabForm::kLast) {
    plan.schedule = make_schedule(pipeline.schedule, request);
  } else {
    plan.keep_probabilities = keeps_probabilities(config);
    add_shard_costs(config, form, plan.keep_probabilities, flops_per_second, plan.cost);
    const auto make = [&](int num_microbatches) {
      ScheduleRequest longer = request;
      longer.microbatches = num_microbatches;
      return make_schedule(pipeline.schedule, longer);
    };
    plan.schedule = plan_vocabulary(make, config.microbatches_per_pipeline(), form, plan.cost);
  }
  plan.memory =
      memory_model(config.model, plan.layout, plan.schedule.placement, pipeline.microbatch_size,
                   config.data.sequence_length / pipeline.slices, pipeline.slices);
  if (form != VocabForm::kLast) {
    for (int rank = 0; rank < pipeline.ranks; ++rank) {
      plan.memory.vocabulary.push_back(vocab_memory(config, form, plan.keep_probabilities, rank));
    }
  }
  ExchangePlan exchange;
  if (const ExchangeMode mode = exchange_mode(config); mode != ExchangeMode::kNone) {
    exchange = plan_exchange(lower(without_offload(plan.schedule)), mode, exchange_costs(plan.cost),
                             plan.cost.link);
  }
  const bool tries = pipeline.exchange == "auto" && !exchange.empty();
  const Schedule bare = plan.schedule;
  set_step(plan, plan_step(config, rates, bare, tries ? ExchangePlan{} : exchange, plan));
  if (tries) plan.exchanging = plan_step(config, rates, bare, exchange, plan);
  plan.evaluation = lower_and_verify(forward_only(plan.schedule));
  for (StageMemory& stage : plan.memory.stages) stage.optimizer /= config.parallel.data;
  for (VocabMemory& rank : plan.memory.vocabulary) rank.optimizer /= config.parallel.data;
  predict(plan);
  return plan;
}

}  // namespace

RunPlan make_plan(const RunConfig& config, double flops_per_second, const CopyRates& rates) {
  if (config.pipeline.vocab != "auto") {
    return plan_form(config, form_of(config.pipeline.vocab), flops_per_second, rates);
  }
  // Sharded only where it is clearly faster: collectives are not in the predicted time.
  constexpr double kGain = 1.03;
  RunPlan last = plan_form(config, VocabForm::kLast, flops_per_second, rates);
  if (config.model.vocab_size < config.pipeline.ranks || config.pipeline.ranks == 1) return last;
  RunPlan sharded = plan_form(config, VocabForm::kParallel2, flops_per_second, rates);
  const auto time = [](const RunPlan& plan) {
    return static_cast<double>(plan.prediction.bubble.makespan);
  };
  return time(sharded) * kGain < time(last) ? sharded : last;
}

void adopt_exchange(RunPlan& plan) {
  SLUICE_CHECK(plan.exchanging.has_value(), "there is no exchange to adopt");
  set_step(plan, std::move(*plan.exchanging));
  plan.exchanging.reset();
  predict(plan);
}

void adopt_copies(RunPlan& plan, PlannedCopies copies, CostModel cost) {
  Program program = lower(copies.schedule);
  program.exchange = std::move(plan.program.exchange);
  check_program(program);
  set_step(plan, {std::move(copies.schedule), std::move(program), std::move(copies.decision)});
  plan.cost = std::move(cost);
  predict(plan);
}

std::string describe(const RunPlan& plan, const RunConfig& config) {
  std::string text = draw_grid(plan.prediction.timeline);
  const auto& placement = plan.schedule.placement;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    text += fmt::format("rank {}:", rank);
    for (const int stage : placement.stages_of(rank)) {
      const StageLayers& layers = plan.layout[static_cast<std::size_t>(stage)];
      text += fmt::format(" stage {} (", stage);
      if (layers.has_embedding) text += "embedding, ";
      if (layers.num_layers == 0) {
        text += "no layer";
      } else {
        text += fmt::format("layers {}-{}", layers.first_layer,
                            layers.first_layer + layers.num_layers - 1);
      }
      text += layers.has_head ? ", output layer)" : layers.has_final_norm ? ", final norm)" : ")";
    }
    if (plan.schedule.vocab != VocabForm::kLast) {
      const VocabRows rows = vocab_rows(config.model.vocab_size, placement.num_ranks(), rank);
      text += fmt::format(", vocabulary rows {}-{}", rows.first, rows.first + rows.count - 1);
    }
    const MemoryPeaks& peaks = plan.prediction.memory[static_cast<std::size_t>(rank)];
    text +=
        fmt::format(", predicted peak {:.1f} MiB\n", static_cast<double>(peaks.total) / (1 << 20));
  }
  if (plan.copies.asked) text += "offload: " + to_string(plan.copies, config.pipeline) + "\n";
  if (plan.exchanging) {
    text += "attention exchange: the first steps run with and without it, the faster one stays\n";
  }
  const double seconds = static_cast<double>(plan.prediction.bubble.makespan) * kNanosecond;
  text += fmt::format(
      "predicted: {:.3f} s per step, {:.0f} tokens/s, bubble {:.1f} %, {} messages\n", seconds,
      static_cast<double>(config.global_batch() * config.data.sequence_length) / seconds,
      100.0 * plan.prediction.bubble.bubble_fraction, plan.program.num_messages());
  return text;
}

}  // namespace sluice
