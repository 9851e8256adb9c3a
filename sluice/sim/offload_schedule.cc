#include "sluice/sim/offload_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

std::int64_t& ticks_at(CostModel& cost, PassKind kind, int stage, int slice) {
  std::vector<std::int64_t>& row = cost.ticks[static_cast<std::size_t>(kind)];
  row.resize(static_cast<std::size_t>(cost.num_stages) * static_cast<std::size_t>(cost.num_slices));
  return row[static_cast<std::size_t>(stage) * static_cast<std::size_t>(cost.num_slices) +
             static_cast<std::size_t>(slice)];
}

// F and the backward of a stage, of one slice on average.
double work_of(const CostModel& cost, int stage) {
  double total = 0.0;
  for (int slice = 0; slice < cost.num_slices; ++slice) {
    const auto of = [&](PassKind kind) {
      return static_cast<double>(cost.duration({kind, stage, 0, slice}));
    };
    const double split = of(PassKind::kBackwardInput) + of(PassKind::kBackwardWeight);
    total += of(PassKind::kForward) + std::max(split, of(PassKind::kBackward));
  }
  return total / cost.num_slices;
}

PassTimetable read_times(const Schedule& schedule, const Timeline& timeline) {
  PassTimetable times(schedule.ranks.size());
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    for (const Span& span : timeline.ranks[rank]) {
      if (span.kind == ActionKind::kPass && span.lane == Lane::kCompute) {
        times[rank].push_back({span.begin, span.end});
      }
    }
  }
  return times;
}

}  // namespace

double offload_ratio_of_layer(std::int64_t hidden, std::int64_t length, double flops_per_second,
                              double bytes_per_second) {
  const auto h = static_cast<double>(hidden);
  const double bytes_per_token = 20.0 * h;
  const double forward_flops_per_token = 24.0 * h * h + 4.0 * h * static_cast<double>(length);
  return 2.0 * bytes_per_token / bytes_per_second /
         (3.0 * forward_flops_per_token / flops_per_second);
}

void set_offload_ratio(CostModel& cost, double ratio) {
  if (!std::isfinite(ratio) || ratio < 0.0 || ratio > 1e6) {
    throw InvalidArgument(
        fmt::format("an offload ratio of {} is out of range: use one from 0 to 1000000", ratio));
  }
  for (int stage = 0; stage < cost.num_stages; ++stage) {
    const auto ticks = static_cast<std::int64_t>(std::llround(work_of(cost, stage) * ratio / 2.0));
    for (int slice = 0; slice < cost.num_slices; ++slice) {
      ticks_at(cost, PassKind::kOffload, stage, slice) = ticks;
      ticks_at(cost, PassKind::kReload, stage, slice) = ticks;
    }
  }
}

OffloadPlan offload_schedule(const Schedule& schedule, const CostModel& cost,
                             const OffloadAmount& amount, double slowdown,
                             const std::vector<std::int64_t>& stage_bytes,
                             const ExchangePlan& exchange) {
  const Schedule bare = without_offload(schedule);
  SimulateOptions options;
  options.record_timeline = true;
  const auto program_of = [&](const Schedule& some) {
    Program program = lower(some);
    program.exchange = exchange;
    return program;
  };
  const Simulation without = simulate(program_of(bare), cost, options);
  const PassTimetable times = read_times(bare, without.timeline);
  OffloadCosts costs{.size = stage_bytes, .one_direction = cost.copies_one_direction};
  costs.message = cost.message_ticks;
  for (const std::int64_t ticks : cost.message_ticks_of_rank) {
    costs.message = std::max(costs.message, ticks);
  }
  const double allowed = (1.0 + slowdown) * static_cast<double>(without.bubble.makespan);
  for (double stretch = 1.0 / (1.0 + slowdown);; stretch *= 1.15) {
    costs.out.clear();
    costs.in.clear();
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      const auto longer = [&](PassKind kind) {
        return static_cast<std::int64_t>(
            std::llround(stretch * static_cast<double>(cost.duration({kind, stage, 0, 0}))));
      };
      costs.out.push_back(longer(PassKind::kOffload));
      costs.in.push_back(longer(PassKind::kReload));
    }
    // In the end without any copy, which delays nothing.
    OffloadPlan plan = plan_offload(bare, times, costs, stretch < 8.0 ? amount : OffloadAmount{});
    const Simulation with = simulate(program_of(plan.schedule), cost);
    if (static_cast<double>(with.bubble.makespan) <= allowed || stretch >= 8.0) return plan;
  }
}

}  // namespace sluice
