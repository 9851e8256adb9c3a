#include "sluice/sim/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using Ticks = std::vector<std::int64_t>;

const Ticks& row(const CostModel& cost, PassKind kind) {
  return cost.ticks[static_cast<std::size_t>(kind)];
}

std::string refusal(const RankTimes& times) {
  try {
    cost_from_rank_times(times, Placement::loop(3, 1), 1);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CostModel, DividesARanksTimeOverChunksAndSlicesWithoutRounding) {
  RankTimes times;
  times.forward = {1.0, 0.1};
  times.message = 0.601;
  const CostModel cost = cost_from_rank_times(times, Placement::loop(2, 3), 7);
  // A third and a seventh of a unit are whole numbers of ticks.
  EXPECT_EQ(cost.unit_per_tick * 21e6, 1.0);
  EXPECT_EQ(cost.duration({PassKind::kForward, 0, 0, 0}), 1'000'000);
  EXPECT_EQ(cost.duration({PassKind::kForward, 5, 0, 6}), 100'000);
  EXPECT_EQ(cost.message_ticks, 601'000 * 21);
  EXPECT_EQ(row(cost, PassKind::kForward).size(), 42U);
}

TEST(CostModel, FindsOneTickForRanksWithDifferentNumbersOfStages) {
  RankTimes times;
  times.forward = {3.0};
  // Rank 0 holds two stages, rank 1 three: the tick is a sixth of a millionth.
  const CostModel cost = cost_from_rank_times(times, Placement({0, 1, 1, 0, 1}, 2), 1);
  EXPECT_EQ(row(cost, PassKind::kForward),
            (Ticks{9'000'000, 6'000'000, 6'000'000, 9'000'000, 6'000'000}));
  EXPECT_EQ(2 * cost.duration({PassKind::kForward, 0, 0, 0}),
            3 * cost.duration({PassKind::kForward, 1, 0, 0}));
}

TEST(CostModel, MakesAFullBackwardTheSumOfItsParts) {
  RankTimes times;
  times.backward_input = {1.4};
  times.backward_weight = {0.6, 0.7};
  const CostModel cost = cost_from_rank_times(times, Placement::loop(2, 1), 1);
  EXPECT_EQ(row(cost, PassKind::kBackwardInput), (Ticks{1'400'000, 1'400'000}));
  EXPECT_EQ(row(cost, PassKind::kBackwardWeight), (Ticks{600'000, 700'000}));
  EXPECT_EQ(row(cost, PassKind::kBackward), (Ticks{2'000'000, 2'100'000}));
}

TEST(CostModel, TakesABackwardOfUnknownSplit) {
  RankTimes times;
  times.backward = {2.5};
  const CostModel cost = cost_from_rank_times(times, Placement::loop(2, 1), 1);
  EXPECT_EQ(row(cost, PassKind::kBackward), (Ticks{2'500'000, 2'500'000}));
  EXPECT_TRUE(row(cost, PassKind::kBackwardInput).empty());
  EXPECT_EQ(cost.duration({PassKind::kBackwardWeight, 1, 0, 0}), 0);
  EXPECT_EQ(to_pass_ticks(cost).backward_input, (Ticks{2'500'000, 2'500'000}));
  EXPECT_EQ(to_pass_ticks(cost).backward_weight, (Ticks{0, 0}));
}

TEST(CostModel, ReadsDecimalsExactly) {
  RankTimes times;
  times.forward = {18.522};
  times.backward_input = {0.1};
  times.backward_weight = {0.2};
  const CostModel cost = cost_from_rank_times(times, Placement::loop(1, 1), 1);
  EXPECT_EQ(cost.duration({PassKind::kForward, 0, 0, 0}), 18'522'000);
  // 0.1 + 0.2 is not 0.3 in doubles.
  EXPECT_EQ(cost.duration({PassKind::kBackward, 0, 0, 0}), 300'000);
}

TEST(CostModel, TellsAGeneratorWholeMicrobatchesPerStage) {
  RankTimes times;
  times.forward = {1.0, 2.0};
  times.message_of_rank = {0.5, 0.25};
  const CostModel cost = cost_from_rank_times(times, Placement::loop(2, 2), 3);
  const PassTicks ticks = to_pass_ticks(cost);
  EXPECT_EQ(ticks.forward, (Ticks{3'000'000, 6'000'000, 3'000'000, 6'000'000}));
  EXPECT_EQ(ticks.backward_weight, (Ticks{3'000'000, 3'000'000, 3'000'000, 3'000'000}));
  EXPECT_EQ(ticks.message, 3'000'000);
}

TEST(CostModel, RefusesTimesThatAreNone) {
  const auto with_forward = [](std::vector<double> forward) {
    RankTimes times;
    times.forward = std::move(forward);
    return refusal(times);
  };
  EXPECT_EQ(with_forward({1.0, 2.0, 3.0}), "accepted");
  EXPECT_EQ(with_forward({1.0, 2.0}),
            "times forward have 2 entries; give one, or one for each of the 3 ranks");
  EXPECT_EQ(with_forward({}),
            "times forward have 0 entries; give one, or one for each of the 3 ranks");
  EXPECT_EQ(with_forward({-1.0}), "time forward = -1 must be a finite number from 0 to 1000000000");
  EXPECT_NE(with_forward({1.0, 2.0, std::nan("")}), "accepted");
  EXPECT_NE(with_forward({std::numeric_limits<double>::infinity()}), "accepted");
  EXPECT_NE(with_forward({2e9}), "accepted");
}

}  // namespace
}  // namespace sluice
