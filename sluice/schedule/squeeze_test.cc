#include "sluice/schedule/squeeze.h"

#include <gtest/gtest.h>

#include <random>

#include "sluice/common/errors.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/replay_for_tests.h"

namespace sluice {
namespace {

TEST(Squeeze, StartsPassesAsSoonAsOrderAndMessagesAllow) {
  const Schedule schedule = make_schedule("1f1b", {.ranks = 2, .microbatches = 2});
  const PassTicks ticks{
      .forward = {3, 4}, .backward_input = {5, 6}, .backward_weight = {1, 2}, .message = 10};
  const SqueezedTimes times = squeeze(schedule, ticks);
  ASSERT_TRUE(times.is_complete);
  // Rank 0: F0 F1 B0 B1; rank 1: F0 B0 F1 B1, where a B takes I and W together.
  EXPECT_EQ(times.start[1], (std::vector<std::int64_t>{13, 17, 25, 29}));
  EXPECT_EQ(times.start[0], (std::vector<std::int64_t>{0, 3, 35, 47}));
  EXPECT_EQ(times.makespan, 53);
  EXPECT_EQ(times.max_span, 53);
  EXPECT_EQ(times.peak, (std::vector<int>{2, 1}));
}

TEST(Squeeze, CountsARanksOwnTimeFromItsFirstPass) {
  const Schedule schedule = make_schedule("gpipe", {.ranks = 3, .microbatches = 1});
  const SqueezedTimes times = squeeze(schedule);
  EXPECT_EQ(times.makespan, 9);
  EXPECT_EQ(times.max_span, 9);
  Schedule last_only = schedule;
  for (std::size_t r = 0; r < 2; ++r) last_only.ranks[r].resize(1);
  EXPECT_EQ(squeeze(last_only).makespan, 5);
  EXPECT_EQ(squeeze(last_only).max_span, 3);  // rank 2: F and B, from 2 to 5
}

TEST(Squeeze, SendsNoMessageWithinARank) {
  const Schedule schedule = make_schedule("dualpipe-v", {.ranks = 1, .microbatches = 3});
  EXPECT_EQ(squeeze(schedule, {.message = 100}).makespan, 18);
}

TEST(Squeeze, AgreesWithTheSlowReplay) {
  std::mt19937 random(1);
  for (const ScheduleInfo& info : schedule_library()) {
    for (int p = 1; p <= 6; ++p) {
      for (const int m : {1, p, 2 * p + 1}) {
        const Schedule schedule = without_offload(make_schedule(
            info.name, {.ranks = p, .microbatches = m, .slices = info.slices_itself ? p : 1}));
        const auto ticks_of_one = [&] { return static_cast<std::int64_t>(random() % 9); };
        const testing::PassTimes same{
            .forward = ticks_of_one(), .input = ticks_of_one(), .weight = ticks_of_one()};
        const auto num_stages = static_cast<std::size_t>(schedule.num_stages());
        PassTicks ticks;
        ticks.forward.assign(num_stages, same.forward);
        ticks.backward_input.assign(num_stages, same.input);
        ticks.backward_weight.assign(num_stages, same.weight);
        const SqueezedTimes times = squeeze(schedule, ticks);
        const testing::Replay expected = testing::replay(schedule, same).value();
        ASSERT_TRUE(times.is_complete);
        EXPECT_EQ(times.makespan, expected.makespan) << info.name << ' ' << p << ' ' << m;
        EXPECT_EQ(times.max_span, expected.longest_span) << info.name << ' ' << p << ' ' << m;
        EXPECT_EQ(times.peak, expected.peak) << info.name << ' ' << p << ' ' << m;
      }
    }
  }
}

TEST(Squeeze, SaysWhenPassesCannotStart) {
  Schedule schedule = make_schedule("1f1b", {.ranks = 2, .microbatches = 2});
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);
  EXPECT_FALSE(squeeze(schedule).is_complete);
}

TEST(Squeeze, RefusesTicksThatDoNotFit) {
  const Schedule schedule = make_schedule("1f1b", {.ranks = 2, .microbatches = 1});
  EXPECT_THROW(squeeze(schedule, {.forward = {1}}), InvalidArgument);
  EXPECT_THROW(squeeze(schedule, {.backward_weight = {1, -1}}), InvalidArgument);
  EXPECT_THROW(squeeze(schedule, {.message = -1}), InvalidArgument);
}

}  // namespace
}  // namespace sluice
