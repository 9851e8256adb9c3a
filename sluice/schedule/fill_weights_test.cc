#include "sluice/schedule/fill_weights.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sluice/schedule/schedules_for_tests.h"

namespace sluice {
namespace {

using testing::schedule_of;
using testing::text_of;

// Two ranks, two microbatches; W of rank 1 stand at its end, W of rank 0 directly after their I.
Schedule two_ranks() {
  return schedule_of({"0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"}, 2, 2);
}

TEST(FillWeights, RunsAWInAGapThatHoldsIt) {
  // Rank 0 waits for 1I1, which ends at 5, from 4 on: a W of one tick fits.
  const Schedule filled = fill_weights(two_ranks(), {}, 2).value();
  EXPECT_EQ(text_of(filled.ranks[0]), "0F0 0F1 0I0 0W0 0I1 0W1");
  EXPECT_EQ(text_of(filled.ranks[1]), "1F0 1I0 1F1 1I1 1W0 1W1");
}

TEST(FillWeights, PutsOffAWThatIsLongerThanTheGap) {
  const Schedule filled = fill_weights(two_ranks(), {.backward_weight = {2, 2}}, 2).value();
  EXPECT_EQ(text_of(filled.ranks[0]), "0F0 0F1 0I0 0I1 0W0 0W1");
}

TEST(FillWeights, FillsASmallGapWhereIdlingWouldSetARecord) {
  const PassTicks ticks{.backward_weight = {2, 2}};
  const auto rank_0 = [&](const FillRules& rules) {
    return text_of(fill_weights(two_ranks(), ticks, 2, rules).value().ranks[0]);
  };
  EXPECT_EQ(rank_0({.small_gaps = SmallGaps::kAll}), "0F0 0F1 0I0 0W0 0I1 0W1");
  EXPECT_EQ(rank_0({.small_gaps = SmallGaps::kBeforeInputOfChunk0}), "0F0 0F1 0I0 0W0 0I1 0W1");
  // It has idled 1 tick before 0I0 and would idle another.
  EXPECT_EQ(rank_0({.small_gaps = SmallGaps::kAll, .idle_budget = 2}), "0F0 0F1 0I0 0I1 0W0 0W1");
}

TEST(FillWeights, RunsAWBeforeAForwardThatNeedsItsMemory) {
  const Schedule one_rank = schedule_of({"0F0 0I0 0F1 0I1 0W0 0W1"}, 1, 2);
  EXPECT_EQ(text_of(fill_weights(one_rank, {}, 1).value().ranks[0]), "0F0 0I0 0W0 0F1 0I1 0W1");
  EXPECT_EQ(text_of(fill_weights(one_rank, {}, 2).value().ranks[0]), "0F0 0I0 0F1 0I1 0W0 0W1");
}

TEST(FillWeights, GivesNothingWhenMemoryCannotBeKept) {
  EXPECT_FALSE(fill_weights(two_ranks(), {}, 1).has_value());
}

TEST(FillWeights, GivesNothingForAnOrderThatDeadlocks) {
  Schedule schedule = two_ranks();
  std::swap(schedule.ranks[1][0], schedule.ranks[1][2]);
  EXPECT_FALSE(fill_weights(schedule, {}, 2).has_value());
}

TEST(FillWeights, KeepsForwardsAndInputsInOrder) {
  const ScheduleRequest request = testing::uniform_request(5, 12, 2, {5, 7, 3, 1});
  const Schedule schedule = make_schedule("v-half", request);
  const Schedule filled = fill_weights(schedule, request.ticks, 6).value();
  EXPECT_TRUE(validate(filled).empty());
  for (std::size_t r = 0; r < filled.ranks.size(); ++r) {
    const auto without_weights = [](std::vector<Pass> passes) {
      std::erase_if(passes,
                    [](const Pass& pass) { return pass.kind == PassKind::kBackwardWeight; });
      return passes;
    };
    EXPECT_EQ(without_weights(filled.ranks[r]), without_weights(schedule.ranks[r]));
  }
}

}  // namespace
}  // namespace sluice
