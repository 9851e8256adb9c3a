#include "sluice/train/replan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/offload.h"

namespace sluice {
namespace {

constexpr int kWarmUp = 1, kMeasured = 2;
constexpr std::size_t kNumCopyFigures = 4;

double since(double after, double before) { return after - before; }

double since(std::int64_t after, std::int64_t before) {
  return static_cast<double>(after - before);
}

/// How far `measured` is from `planned`, as a share of that.
double difference(double measured, double planned) {
  return planned <= 0.0 ? HUGE_VAL : std::abs(measured - planned) / planned;
}

/// The figure that is furthest from what the copies were planned with.
struct Difference {
  double share = 0.0;
  std::string text;

  void meet(double measured, double planned, const std::string& words) {
    if (difference(measured, planned) <= share) return;
    share = difference(measured, planned);
    text = words;
  }
};

Difference largest_difference(const OffloadDecision& planned, const MeasuredOffload& measured) {
  const CostModel& passes = measured.passes;
  std::int64_t longest = 0;
  for (std::size_t kind = 0; kind < passes.ticks.size(); ++kind) {
    if (is_copy(static_cast<PassKind>(kind))) continue;
    for (const std::int64_t ticks : passes.ticks[kind]) longest = std::max(longest, ticks);
  }
  constexpr std::int64_t kShortest = 100;  // a hundredth of the longest moves no copy
  Difference largest;
  for (std::size_t kind = 0; kind < passes.ticks.size(); ++kind) {
    if (is_copy(static_cast<PassKind>(kind))) continue;
    for (int unit = 0; unit < static_cast<int>(passes.ticks[kind].size()); ++unit) {
      const Pass pass{.kind = static_cast<PassKind>(kind),
                      .stage = unit / passes.num_slices,
                      .microbatch = 0,
                      .slice = unit % passes.num_slices};
      if (passes.duration(pass) * kShortest <= longest) continue;
      const double now = 1e-6 * static_cast<double>(passes.duration(pass));
      const double then = 1e-6 * static_cast<double>(planned.passes.duration(pass));
      largest.meet(now, then,
                   fmt::format("{} of stage {} takes {:.3g} ms instead of {:.3g}",
                               letter(pass.kind), pass.stage, now, then));
    }
  }
  const auto rate = [&](const char* way, double now, double then) {
    if (now <= 0.0) return;
    largest.meet(
        now, then,
        fmt::format("copies {} reach {:.2f} GB/s instead of {:.2f}", way, now / 1e9, then / 1e9));
  };
  rate("out", measured.rates.out, planned.rates.out);
  rate("back", measured.rates.in, planned.rates.in);
  return largest;
}

/// The costs of the plan with what was measured in their place. An exchange is in what was
/// measured.
CostModel costs_of(const CostModel& planned, const MeasuredOffload& measured) {
  CostModel cost = planned;
  for (std::size_t kind = 0; kind < cost.ticks.size(); ++kind) {
    if (is_copy(static_cast<PassKind>(kind))) continue;
    const std::vector<std::int64_t>& ticks = measured.passes.ticks[kind];
    if (std::any_of(ticks.begin(), ticks.end(), [](std::int64_t one) { return one > 0; })) {
      cost.ticks[kind] = ticks;
    } else if (!cost.ticks[kind].empty()) {
      cost.ticks[kind].assign(ticks.size(), 0);  // no such pass in this schedule
    }
  }
  for (auto& half : cost.half_ticks) half.clear();
  cost.link = {};
  return cost;
}

}  // namespace

void OffloadWatch::add(const Engine& engine, const Program& program) {
  SLUICE_CHECK(!done_, "step {} of {} measured ones", num_steps_, kWarmUp + kMeasured);
  if (num_steps_++ < kWarmUp) {
    before_ = engine.copies();
    return;
  }
  const CostModel cost =
      measured_costs({.seconds_per_tick = 1e-9, .ranks = {engine.spans()}}, program);
  std::vector<double> ticks;
  for (const auto& row : cost.ticks) ticks.insert(ticks.end(), row.begin(), row.end());
  for (std::size_t i = 0; i < ticks_.size(); ++i) ticks[i] = std::min(ticks[i], ticks_[i]);
  ticks_ = std::move(ticks);
  after_ = engine.copies();
  done_ = num_steps_ == kWarmUp + kMeasured;
}

std::vector<double> OffloadWatch::figures() const {
  std::vector<double> figures = ticks_;
  figures.push_back(since(after_.num_bytes_out, before_.num_bytes_out));
  figures.push_back(since(after_.seconds_out, before_.seconds_out));
  figures.push_back(since(after_.num_bytes_in, before_.num_bytes_in));
  figures.push_back(since(after_.seconds_in, before_.seconds_in));
  return figures;
}

MeasuredOffload combine(const std::vector<std::vector<double>>& figures, const Program& program,
                        const CopyRates& known) {
  MeasuredOffload measured;
  CostModel& cost = measured.passes;
  cost.num_stages = program.num_stages();
  cost.num_slices = program.num_slices;
  cost.unit_per_tick = 1e-9;
  const auto num_units =
      static_cast<std::size_t>(cost.num_stages) * static_cast<std::size_t>(cost.num_slices);
  for (auto& row : cost.ticks) row.assign(num_units, 0);
  const std::size_t num_ticks = cost.ticks.size() * num_units;
  for (const std::vector<double>& rank : figures) {
    SLUICE_CHECK(rank.size() == num_ticks + kNumCopyFigures, "{} figures of a rank instead of {}",
                 rank.size(), num_ticks + kNumCopyFigures);
    for (std::size_t i = 0; i < num_ticks; ++i) {
      std::int64_t& ticks = cost.ticks[i / num_units][i % num_units];
      ticks = std::max(ticks, static_cast<std::int64_t>(rank[i]));
    }
    const auto slowest = [&](std::size_t at, double& rate) {
      if (rank[at] <= 0.0 || rank[at + 1] <= 0.0) return;
      const double own = rank[at] / rank[at + 1];
      rate = rate == 0.0 ? own : std::min(rate, own);
    };
    slowest(num_ticks, measured.rates.out);
    slowest(num_ticks + 2, measured.rates.in);
  }
  if (measured.rates.out == 0.0) measured.rates.out = known.out;
  if (measured.rates.in == 0.0) measured.rates.in = known.in;
  return measured;
}

Replan replan(const RunConfig& config, RunPlan now, const MeasuredOffload& measured) {
  const double limit = config.pipeline.offload_replan;
  const Difference largest = largest_difference(now.copies, measured);
  if (largest.share <= limit) {
    return {{},
            fmt::format("offload: the first steps are within {:.0f} % of what it was planned with: "
                        "the plan stays, {}",
                        100.0 * limit, to_string(now.copies, config.pipeline))};
  }
  CostModel cost = costs_of(now.cost, measured);
  PlannedCopies copies =
      plan_copies(config, measured.rates, now.schedule, movable_bytes(now.memory), {}, cost);
  const std::string planned = fmt::format("offload: {}; planned again: {}", largest.text,
                                          to_string(copies.decision, config.pipeline));
  const bool must = config.pipeline.offload != "none" && config.pipeline.offload != "auto";
  if (must && copies.decision.num_moved == 0 && now.copies.num_moved > 0) {
    return {{}, planned + ", so the first plan stays: " + to_string(now.copies, config.pipeline)};
  }
  if (copies.schedule.ranks == now.schedule.ranks) {
    return {{}, planned + ": the same copies"};
  }
  const std::string before =
      fmt::format(" (before: k = {:.2f}, {} leave, {:.1f} MiB)", now.copies.k, now.copies.num_moved,
                  static_cast<double>(now.copies.peak) / (1 << 20));
  adopt_copies(now, std::move(copies), std::move(cost));
  return {std::move(now), planned + before};
}

bool Replanner::decide(Transport& world, bool exchanging, const OffloadWatch& watch) {
  const auto figures = world.all_gather(watch.figures());
  bool no_room = false;
  if (world.rank() == here_.first_rank) {
    RunPlan now = plan_;
    if (exchanging) adopt_exchange(now);
    const MeasuredOffload measured = combine(figures, now.program, now.copies.rates);
    replan_ = replan(config_, std::move(now), measured);
    try {
      if (replan_.plan) {
        const RunPlan& next = *replan_.plan;
        stores_ =
            make_stores_here(config_.pipeline, next.program, movable_bytes(next.memory), here_);
      }
    } catch (const InvalidArgument&) {
      no_room = true;
    }
  }
  // Each rank reads what the first of its process wrote before this.
  const auto refusals = world.all_gather(std::vector{no_room ? 1.0 : 0.0});
  const bool refused =
      std::any_of(refusals.begin(), refusals.end(), [](const auto& one) { return one[0] != 0.0; });
  if (!refused) return replan_.plan.has_value();
  world.barrier();
  if (world.rank() == here_.first_rank) {
    stores_.clear();
    replan_.plan.reset();
    replan_.note += ", for which there is no room beside the first plan: that one stays";
  }
  world.barrier();
  return false;
}

}  // namespace sluice
