#include "sluice/train/plan_offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/schedule/offload.h"
#include "sluice/sim/offload_schedule.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

constexpr double kMebibyte = 1 << 20;

std::size_t row(PassKind kind) { return static_cast<std::size_t>(kind); }

std::int64_t num_moved(const OffloadPlan& plan) {
  std::int64_t sum = 0;
  for (const RankOffload& rank : plan.ranks) sum += rank.num_moved;
  return sum;
}

/// Every stage's D and U at these rates, all slices alike.
void set_copy_times(const CopyRates& rates, const std::vector<std::int64_t>& stage_bytes,
                    CostModel& cost) {
  const auto fill = [&](PassKind kind, double rate) {
    auto& ticks = cost.ticks[row(kind)];
    ticks.clear();
    for (const std::int64_t num_bytes : stage_bytes) {
      const double seconds = rate <= 0.0 ? 0.0 : static_cast<double>(num_bytes) / rate;
      const std::int64_t each =
          std::max<std::int64_t>(1, std::llround(seconds / cost.unit_per_tick));
      ticks.insert(ticks.end(), static_cast<std::size_t>(cost.num_slices), each);
    }
  };
  fill(PassKind::kOffload, rates.out);
  fill(PassKind::kReload, rates.in);
}

double ratio_of(const CostModel& cost) {
  double copying = 0.0;
  double working = 0.0;
  for (int stage = 0; stage < cost.num_stages; ++stage) {
    const auto of = [&](PassKind kind) {
      return static_cast<double>(cost.duration({kind, stage, 0, 0}));
    };
    copying += of(PassKind::kOffload) + of(PassKind::kReload);
    working += of(PassKind::kForward) +
               std::max(of(PassKind::kBackward),
                        of(PassKind::kBackwardInput) + of(PassKind::kBackwardWeight));
  }
  return copying / working;
}

/// How long passes last that exchange attention, or do not.
CostModel lasting(const Schedule& bare, const ExchangePlan& exchange, const CostModel& cost) {
  Program program = lower(bare);
  program.exchange = exchange;
  CostModel passes =
      measured_costs(simulate(program, cost, {.record_timeline = true}).timeline, program);
  passes.unit_per_tick = cost.unit_per_tick;
  return passes;
}

}  // namespace

PlannedCopies plan_copies(const RunConfig& config, const CopyRates& rates, const Schedule& schedule,
                          const std::vector<std::int64_t>& stage_bytes,
                          const ExchangePlan& exchange, CostModel& cost) {
  const OffloadAmount amount =
      parse_offload("pipeline.offload", offload_amount(config.pipeline), schedule.placement);
  PlannedCopies planned{.schedule = without_offload(schedule), .decision = {}};
  if (amount.num_chunks == 0) return planned;
  set_copy_times(rates, stage_bytes, cost);
  OffloadDecision& decision = planned.decision;
  decision.asked = true;
  decision.rates = rates;
  decision.passes = lasting(planned.schedule, exchange, cost);
  decision.k = ratio_of(cost);
  OffloadPlan plan = offload_schedule(planned.schedule, cost, amount,
                                      config.pipeline.offload_slowdown, stage_bytes, exchange);
  decision.num_moved = num_moved(plan);
  decision.num_units = std::int64_t{schedule.num_stages()} * config.microbatches_per_pipeline() *
                       config.pipeline.slices;
  for (const RankOffload& rank : plan.ranks) {
    if (rank.peak_before <= decision.peak_before) continue;
    decision.peak_before = rank.peak_before;
    decision.peak = rank.peak;
  }
  planned.schedule = std::move(plan.schedule);
  return planned;
}

void require_copies(const RunConfig& config, const PlannedCopies& copies,
                    const std::vector<std::int64_t>& stage_bytes, const CostModel& cost) {
  const OffloadDecision& decision = copies.decision;
  const std::string text = offload_amount(config.pipeline);
  if (!decision.asked || decision.num_moved > 0) return;
  if (config.pipeline.offload == "none" || text == "auto") return;
  CostModel free = cost;
  for (const PassKind kind : {PassKind::kOffload, PassKind::kReload}) {
    std::fill(free.ticks[row(kind)].begin(), free.ticks[row(kind)].end(), 0);
  }
  const OffloadAmount amount = parse_offload("pipeline.offload", text, copies.schedule.placement);
  if (num_moved(offload_schedule(copies.schedule, free, amount, 0.0, stage_bytes)) == 0) return;
  throw InvalidArgument(fmt::format(
      "pipeline.offload = {}: at {:.2f} GB/s out and {:.2f} GB/s in a copy there and back takes "
      "{:.2f} times what its passes take, and nothing can leave without delay; set "
      "pipeline.offload = \"auto\", another pipeline.offload_tier, or more microbatches",
      text, decision.rates.out / 1e9, decision.rates.in / 1e9, decision.k));
}

std::string to_string(const OffloadDecision& decision, const PipelineConfig& pipeline) {
  const std::string both = decision.rates.both <= 0.0 ? std::string()
                                                      : fmt::format(", {:.2f} GB/s both at once",
                                                                    decision.rates.both / 1e9);
  return fmt::format(
      "k = {:.2f} ({} at {:.2f} GB/s out, {:.2f} GB/s in{}): {} of {} activations leave, peak of "
      "the fullest rank {:.1f} MiB instead of {:.1f}",
      decision.k, pipeline.offload_tier, decision.rates.out / 1e9, decision.rates.in / 1e9, both,
      decision.num_moved, decision.num_units, static_cast<double>(decision.peak) / kMebibyte,
      static_cast<double>(decision.peak_before) / kMebibyte);
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

}  // namespace sluice
