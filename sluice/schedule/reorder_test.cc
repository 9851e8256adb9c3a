#include "sluice/schedule/reorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sluice/schedule/schedules_for_tests.h"
#include "sluice/schedule/v_blocks.h"

namespace sluice {
namespace {

using testing::highest_peak;
using testing::schedule_of;
using testing::text_of;
using testing::uniform_request;

// Rank 0 idles from 1 to 3 while rank 1 works; its second forward fits there.
TEST(Reorder, MovesAForwardIntoIdleTime) {
  const Schedule schedule = schedule_of({"0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"}, 2, 2);
  EXPECT_EQ(text_of(reorder(schedule, {}, 2).ranks[0]), "0F0 0F1 0B0 0B1");
}

TEST(Reorder, MovesNoForwardWhereMemoryIsFull) {
  const Schedule schedule = schedule_of({"0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"}, 2, 2);
  EXPECT_EQ(reorder(schedule, {}, 1).ranks, schedule.ranks);
}

TEST(Reorder, LeavesAPassThatFitsInNoGap) {
  const Schedule schedule = schedule_of({"0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"}, 2, 2);
  const PassTicks ticks{.forward = {4, 1}};  // rank 0 idles for 3 ticks
  EXPECT_EQ(reorder(schedule, ticks, 2).ranks, schedule.ranks);
}

TEST(Reorder, OnlyEverShortensAStepAndKeepsItsPasses) {
  for (const int p : {3, 4, 5, 8}) {
    for (const int m : {1, p, 3 * p}) {
      const ScheduleRequest request = uniform_request(p, m, 2, {5, 7, 3, 1});
      Schedule schedule;
      schedule.placement = Placement::v_shape(p);
      schedule.num_microbatches = m;
      schedule.ranks.resize(static_cast<std::size_t>(p));
      repeat_block(schedule, v_half_block(p), true);
      const Schedule moved = reorder(schedule, request.ticks, v_half_peak(p));
      EXPECT_LE(squeeze(moved, request.ticks).makespan, squeeze(schedule, request.ticks).makespan);
      EXPECT_LE(highest_peak(squeeze(moved, request.ticks)), v_half_peak(p));
      EXPECT_TRUE(validate(moved).empty()) << p << ' ' << m;
      for (std::size_t r = 0; r < moved.ranks.size(); ++r) {
        EXPECT_TRUE(std::is_permutation(moved.ranks[r].begin(), moved.ranks[r].end(),
                                        schedule.ranks[r].begin(), schedule.ranks[r].end()));
      }
    }
  }
}

}  // namespace
}  // namespace sluice
