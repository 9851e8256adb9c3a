#include "sluice/trace/axis.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

TEST(Axis, StepsAreOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_DOUBLE_EQ(nice_step(1.0), 1.0);
  EXPECT_DOUBLE_EQ(nice_step(1.1), 2.0);
  EXPECT_DOUBLE_EQ(nice_step(2.5), 5.0);
  EXPECT_DOUBLE_EQ(nice_step(7.0), 10.0);
  EXPECT_DOUBLE_EQ(nice_step(0.03), 0.05);
  for (double step = 1e-7; step < 1e7; step *= 1.7) {
    EXPECT_GE(nice_step(step), step * (1.0 - 1e-9));
    EXPECT_LT(nice_step(step), 2.51 * step);
  }
}

TEST(Axis, ShowsTicksWithoutTheirRounding) {
  const double unit_per_tick = 1e-6 / 2;
  EXPECT_EQ(in_units(57'000'000, unit_per_tick), 28.5);
  EXPECT_EQ(in_units(18'522'000 * 2, unit_per_tick), 18.522);
  EXPECT_EQ(show_time(57'000'000, {unit_per_tick, "ms"}), "28.5 ms");
  EXPECT_EQ(show_time(0, {unit_per_tick, ""}), "0");
}

TEST(Axis, PicksTheUnitThatFits) {
  Timeline timeline;
  timeline.seconds_per_tick = 1e-9;
  timeline.ranks = {{Span()}};
  Span& span = timeline.ranks[0][0];
  span.end = 900'000;
  EXPECT_EQ(real_time_axis(timeline).unit, "us");
  span.end = 900'000'000;
  EXPECT_EQ(real_time_axis(timeline).unit, "ms");
  EXPECT_DOUBLE_EQ(real_time_axis(timeline).unit_per_tick, 1e-6);
  span.end = 9'000'000'000;
  EXPECT_EQ(real_time_axis(timeline).unit, "s");
}

}  // namespace
}  // namespace sluice
