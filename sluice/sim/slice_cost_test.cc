// Costs that differ between slices.
#include <gtest/gtest.h>

#include <string>

#include "sluice/common/errors.h"
#include "sluice/sim/cost_model.h"
#include "sluice/sim/exchange_cost.h"

namespace sluice {
namespace {

double units(const CostModel& cost, PassKind kind, int stage, int slice) {
  return static_cast<double>(cost.duration({kind, stage, 0, slice})) * cost.unit_per_tick;
}

TEST(AttentionCost, GivesEverySliceItsLinearPartAndItsContext) {
  const double linear = 3.0;
  const double ratio = 1.5;
  const int n = 4;
  const CostModel cost = cost_from_attention(linear, ratio, 0.25, Placement::loop(2, 3), n);
  for (int slice = 0; slice < n; ++slice) {
    const double part = linear / n / 3;
    const double attention = ratio * linear * (slice + 0.5) / (n * n / 2.0) / 3;
    EXPECT_DOUBLE_EQ(units(cost, PassKind::kForward, 4, slice), part + attention);
    EXPECT_DOUBLE_EQ(units(cost, PassKind::kBackward, 4, slice), 2 * part + 2.5 * attention);
    EXPECT_DOUBLE_EQ(units(cost, PassKind::kBackwardInput, 4, slice), part + 2.5 * attention);
    EXPECT_DOUBLE_EQ(units(cost, PassKind::kBackwardWeight, 4, slice), part);
    const Pass pass{PassKind::kForward, 4, 0, slice};
    EXPECT_DOUBLE_EQ(static_cast<double>(cost.half_duration(pass)) * cost.unit_per_tick,
                     ratio * linear / (n * n) / 3);
  }
  EXPECT_DOUBLE_EQ(static_cast<double>(cost.message_ticks) * cost.unit_per_tick, 0.25);
}

// Whatever the slices: a forward is (1 + R) times the linear part, a backward (2 + 2.5 R) times.
TEST(AttentionCost, AddsUpToTheWholeMicrobatchExactly) {
  for (const int n : {1, 2, 3, 7, 16, 100}) {
    for (const int chunks : {1, 3, 5}) {
      const CostModel cost = cost_from_attention(1.0, 4.27, 0.0, Placement::loop(2, chunks), n);
      std::int64_t forward = 0;
      std::int64_t backward = 0;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        for (int slice = 0; slice < n; ++slice) {
          forward += cost.duration({PassKind::kForward, 2 * chunk, 0, slice});
          backward += cost.duration({PassKind::kBackward, 2 * chunk, 0, slice});
        }
      }
      const std::int64_t ticks_per_micro = std::int64_t{2} * chunks * n * n;
      EXPECT_EQ(forward, 5'270'000 * ticks_per_micro);
      EXPECT_EQ(backward, 12'675'000 * ticks_per_micro);
    }
  }
}

TEST(AttentionCost, RefusesTimesThatCannotBeExact) {
  const Placement placement = Placement::loop(2, 1);
  EXPECT_THROW(cost_from_attention(-1.0, 1.0, 0.0, placement, 4), InvalidArgument);
  EXPECT_THROW(cost_from_attention(1.0, -1.0, 0.0, placement, 4), InvalidArgument);
  EXPECT_THROW(cost_from_attention(1e9, 100.0, 0.0, placement, 4), InvalidArgument);
  EXPECT_THROW(cost_from_attention(1e9, 1.0, 0.0, placement, 4096), InvalidArgument);
}

TEST(SliceTimes, FindWhatHalfAnOlderSliceTakes) {
  SliceTimes times;
  times.forward = {5.0, 7.0, 9.0, 11.0};  // 2 for every older slice
  times.backward = {9.0, 14.0, 19.0, 24.0};
  const CostModel cost = cost_from_slice_times(times, Placement::loop(2, 1), 4);
  EXPECT_DOUBLE_EQ(units(cost, PassKind::kForward, 1, 3), 11.0);
  EXPECT_DOUBLE_EQ(units(cost, PassKind::kBackward, 0, 0), 9.0);
  EXPECT_EQ(cost.half_duration({PassKind::kForward, 0, 0, 2}), 1'000'000);
  EXPECT_EQ(cost.half_duration({PassKind::kBackward, 0, 0, 2}), 2'500'000);
  const ExchangeCosts exchange = exchange_costs(cost);
  EXPECT_EQ(exchange.own, std::vector<std::int64_t>(8, 5'000'000));
}

TEST(SliceTimes, NeverMoveMoreThanASliceHas) {
  SliceTimes times;
  times.forward = {0.0, 0.1, 8.0, 9.0};  // noise: the slope is more than slice 1 takes
  times.backward_input = {1.0, 1.0, 1.0, 1.0};
  times.backward_weight = {1.0, 1.0, 1.0, 1.0};
  const CostModel cost = cost_from_slice_times(times, Placement::loop(1, 1), 4);
  for (int slice = 1; slice < 4; ++slice) {
    const Pass pass{PassKind::kForward, 0, 0, slice};
    EXPECT_LE(2 * slice * cost.half_duration(pass), cost.duration(pass));
  }
  EXPECT_EQ(cost.half_duration({PassKind::kBackwardInput, 0, 0, 3}), 0);
  EXPECT_DOUBLE_EQ(units(cost, PassKind::kBackward, 0, 1), 2.0);
}

TEST(SliceTimes, MustBeOneForEachSlice) {
  SliceTimes times;
  times.forward = {1.0, 2.0};
  times.backward = {1.0, 2.0, 3.0};
  EXPECT_THROW(cost_from_slice_times(times, Placement::loop(1, 1), 3), InvalidArgument);
  times.forward.push_back(3.0);
  EXPECT_NO_THROW(cost_from_slice_times(times, Placement::loop(1, 1), 3));
}

}  // namespace
}  // namespace sluice
