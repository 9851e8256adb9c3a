// Offload in simulated time: free when the link can carry it, with the memory that was planned.
#include "sluice/sim/offload_schedule.h"

#include <gtest/gtest.h>

#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/exchange_cost.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

struct Case {
  Schedule schedule;
  CostModel cost;
};

Case make_case(const char* name, int ranks, int chunks, int slices, double ratio,
               const RankTimes& times = {}) {
  Case made{
      .schedule = make_schedule(
          name, {.ranks = ranks, .microbatches = 4 * ranks, .chunks = chunks, .slices = slices}),
      .cost = {}};
  made.cost = cost_from_rank_times(times, made.schedule.placement, slices);
  set_offload_ratio(made.cost, ratio);
  return made;
}

std::int64_t makespan(const Schedule& schedule, const CostModel& cost) {
  return simulate(lower(schedule), cost).bubble.makespan;
}

TEST(OffloadSchedule, HalfAndFullCostLessThanOnePercentAtRatioNineTenths) {
  const RankTimes uneven{.forward = {1.0},
                         .backward_input = {1.2},
                         .backward_weight = {0.8},
                         .backward = {},
                         .message = 0.02,
                         .message_of_rank = {}};
  for (const char* name : {"po", "gis-h", "gis", "1f1b", "interleaved", "zb-v"}) {
    for (const int ranks : {2, 4, 5, 8}) {
      for (const RankTimes& times : {RankTimes{}, uneven}) {
        const Case one = make_case(name, ranks, 0, 1, 0.9, times);
        const auto without = static_cast<double>(makespan(one.schedule, one.cost));
        for (const char* amount : {"half", "full"}) {
          const OffloadPlan plan =
              offload_schedule(one.schedule, one.cost,
                               parse_offload("offload", amount, one.schedule.placement), 0.01);
          const auto with = static_cast<double>(makespan(plan.schedule, one.cost));
          EXPECT_LE(with, 1.01 * without) << name << ' ' << ranks << ' ' << amount;
        }
      }
    }
  }
}

TEST(OffloadSchedule, SimulatesToThePeaksOfThePlanOnTheDeviceAndAway) {
  for (const char* name : {"po", "gis-h", "1f1b", "v-half"}) {
    for (const int slices : {1, 2}) {
      const Case one = make_case(name, 4, 0, slices, 0.6);
      const OffloadPlan plan = offload_schedule(
          one.schedule, one.cost, parse_offload("offload", "full", one.schedule.placement), 0.0);
      const Program program = lower(plan.schedule);
      ASSERT_TRUE(verify(program).empty());
      const Simulation result = simulate(program, one.cost);
      for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
        EXPECT_EQ(result.peak_saved[rank], plan.ranks[rank].peak) << name << ' ' << rank;
        EXPECT_EQ(result.peak_away[rank], plan.ranks[rank].peak_away) << name << ' ' << rank;
      }
    }
  }
}

TEST(OffloadSchedule, KeepsABytePlanWithinItsMemoryModel) {
  const Case one = make_case("po", 4, 2, 1, 0.7);
  MemoryModel memory;
  std::vector<std::int64_t> bytes;
  for (int stage = 0; stage < one.schedule.num_stages(); ++stage) {
    memory.stages.push_back({.saved = 100 + stage, .saved_for_weight = 50, .movable = 100 + stage});
    bytes.push_back(100 + stage);
  }
  const OffloadPlan plan = offload_schedule(
      one.schedule, one.cost, parse_offload("offload", "full", one.schedule.placement), 0.0, bytes);
  const Simulation result =
      simulate(lower(plan.schedule), one.cost, {.memory = &memory, .record_memory = true});
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    EXPECT_LT(plan.ranks[rank].peak, plan.ranks[rank].peak_before);
    EXPECT_EQ(result.memory[rank].by_class[static_cast<std::size_t>(MemoryClass::kActivations)],
              plan.ranks[rank].peak);
    EXPECT_EQ(result.peak_bytes_away[rank], plan.ranks[rank].peak_away);
    std::int64_t last = 0;
    for (const MemorySample& sample : result.curve.ranks[rank]) {
      EXPECT_GE(sample.time, last);
      last = sample.time;
    }
    EXPECT_EQ(total_bytes(result.curve.ranks[rank].back().bytes), 0);
  }
}

TEST(OffloadSchedule, CopiesOfARankTakeTurnsOnASharedLink) {
  const Case one = make_case("po", 4, 2, 1, 1.0);
  const OffloadPlan plan = offload_schedule(
      one.schedule, one.cost, parse_offload("offload", "full", one.schedule.placement), 0.0);
  const Simulation result = simulate(lower(plan.schedule), one.cost, {.record_timeline = true});
  for (const auto& spans : result.timeline.ranks) {
    std::int64_t end = 0;
    int num_copies = 0;
    for (const Span& span : spans) {
      if (span.lane != Lane::kCopyOut && span.lane != Lane::kCopyIn) continue;
      EXPECT_GE(span.begin, end);
      end = span.end;
      ++num_copies;
    }
    EXPECT_GT(num_copies, 0);
  }
}

TEST(OffloadSchedule, PlansWithTheTimesThatAnExchangeLeavesToThePasses) {
  const Schedule schedule =
      make_schedule("slimpipe", {.ranks = 4, .microbatches = 8, .chunks = 2, .slices = 8});
  CostModel cost = cost_from_attention(1.0, 2.0, 0.0, schedule.placement, 8);
  set_offload_ratio(cost, 0.8);
  const ExchangePlan exchange =
      plan_exchange(lower(schedule), ExchangeMode::kBalanced, exchange_costs(cost), cost.link);
  ASSERT_FALSE(exchange.empty());
  const auto time = [&](const Schedule& some) {
    Program program = lower(some);
    program.exchange = exchange;
    EXPECT_TRUE(verify(program).empty());
    return static_cast<double>(simulate(program, cost).bubble.makespan);
  };
  const OffloadAmount full = parse_offload("offload", "full", schedule.placement);
  const OffloadPlan plan = offload_schedule(schedule, cost, full, 0.01, {}, exchange);
  EXPECT_LE(time(plan.schedule), 1.01 * time(schedule));
  for (const RankOffload& rank : plan.ranks) EXPECT_LT(rank.peak, rank.peak_before);
  const OffloadPlan before = offload_schedule(schedule, cost, full, 0.01);
  EXPECT_NE(plan.schedule.ranks, before.schedule.ranks) << "exchanged passes take other times";
}

TEST(OffloadSchedule, RefusesARatioThatIsNoTime) {
  Case one = make_case("po", 2, 2, 1, 1.0);
  for (const double ratio : {-1.0, 1e9, std::nan("")}) {
    EXPECT_THROW(set_offload_ratio(one.cost, ratio), InvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
