#include "sluice/train/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sluice/common/errors.h"
#include "sluice/model/accounting.h"
#include "sluice/program/lower.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/registry.h"
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
    return std::max<std::int64_t>(
        1, std::llround(flops / cost.num_slices / flops_per_second / kNanosecond));
  };
  for (const StageLayers& layers : layout) {
    const StageFlops flops = stage_flops(config.model, layers, config.pipeline.microbatch_size,
                                         config.data.sequence_length);
    for (int slice = 0; slice < cost.num_slices; ++slice) {
      cost.ticks[row(PassKind::kForward)].push_back(ticks(flops.forward));
      cost.ticks[row(PassKind::kBackwardInput)].push_back(ticks(flops.backward_input));
      cost.ticks[row(PassKind::kBackwardWeight)].push_back(ticks(flops.backward_weight));
      cost.ticks[row(PassKind::kBackward)].push_back(
          ticks(flops.backward_input + flops.backward_weight));
    }
  }
  return cost;
}

ScheduleRequest request_of(const PipelineConfig& pipeline) {
  return {.ranks = pipeline.ranks,
          .microbatches = pipeline.microbatches,
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

Program lower_and_verify(const Schedule& schedule) {
  Program program = lower(schedule);
  const auto problems = verify(program);
  if (!problems.empty()) {
    throw InternalError(fmt::format("the program of schedule {} fails its proof: {}", schedule.name,
                                    problems.front().text));
  }
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
    memory.stages.push_back(stage);
  }
  if (model.tie_word_embeddings) {
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

RunPlan make_plan(const RunConfig& config, double flops_per_second) {
  const PipelineConfig& pipeline = config.pipeline;
  RunPlan plan;
  // The placement follows from the schedule's shape alone, the layers from the placement, and the
  // final order of cost-aware schedules from the layers' costs.
  ScheduleRequest request = request_of(pipeline);
  const Placement placement = make_schedule(pipeline.schedule, request).placement;
  plan.layout = parse_layout(pipeline.layers, config.model, rank_of_stages(placement),
                             config.data.sequence_length);
  plan.cost = costs_from_flops(config, plan.layout, flops_per_second);
  request.ticks = to_pass_ticks(plan.cost);
  plan.schedule = make_schedule(pipeline.schedule, request);
  plan.program = lower_and_verify(plan.schedule);
  plan.evaluation = lower_and_verify(forward_only(plan.schedule));
  plan.memory =
      memory_model(config.model, plan.layout, plan.schedule.placement, pipeline.microbatch_size,
                   config.data.sequence_length / pipeline.slices, pipeline.slices);
  plan.prediction =
      simulate(plan.program, plan.cost,
               {.record_timeline = true, .memory = &plan.memory, .record_memory = true});
  return plan;
}

CostModel measured_costs(const Timeline& timeline, const Program& program) {
  CostModel cost;
  cost.num_stages = program.num_stages();
  cost.num_slices = program.num_slices;
  cost.unit_per_tick = timeline.seconds_per_tick;
  const std::size_t num_units =
      static_cast<std::size_t>(cost.num_stages) * static_cast<std::size_t>(cost.num_slices);
  std::array<std::vector<std::vector<std::int64_t>>, kNumPassKinds> durations;
  for (auto& kind : durations) kind.resize(num_units);
  for (const auto& spans : timeline.ranks) {
    for (const Span& span : spans) {
      if (span.kind != ActionKind::kPass) continue;
      const auto unit = static_cast<std::size_t>(span.pass.stage * cost.num_slices) +
                        static_cast<std::size_t>(span.pass.slice);
      durations[row(span.pass.kind)][unit].push_back(span.end - span.begin);
    }
  }
  for (std::size_t kind = 0; kind < durations.size(); ++kind) {
    cost.ticks[kind].assign(num_units, 0);
    for (std::size_t unit = 0; unit < num_units; ++unit) {
      auto& values = durations[kind][unit];
      if (values.empty()) continue;
      const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
      std::nth_element(values.begin(), middle, values.end());
      cost.ticks[kind][unit] = *middle;
    }
  }
  return cost;
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
      text += layers.has_head ? ", output layer)" : ")";
    }
    const MemoryPeaks& peaks = plan.prediction.memory[static_cast<std::size_t>(rank)];
    text +=
        fmt::format(", predicted peak {:.1f} MiB\n", static_cast<double>(peaks.total) / (1 << 20));
  }
  const double seconds = static_cast<double>(plan.prediction.bubble.makespan) * kNanosecond;
  text += fmt::format(
      "predicted: {:.3f} s per step, {:.0f} tokens/s, bubble {:.1f} %, {} messages\n", seconds,
      static_cast<double>(config.global_batch() * config.data.sequence_length) / seconds,
      100.0 * plan.prediction.bubble.bubble_fraction, plan.program.num_messages());
  return text;
}

}  // namespace sluice
