// The schedules on a V against known numbers. Times are in units of one pass of a whole rank (both
// chunks), of which a tick below is a part that is named; a cell is one pass of one chunk.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "sluice/common/errors.h"
#include "sluice/schedule/schedules_for_tests.h"
#include "sluice/schedule/v_blocks.h"

namespace sluice {
namespace {

using testing::bubble_at_most;
using testing::highest_peak;
using testing::uniform_request;
using testing::UniformTicks;
using testing::work_of;

SqueezedTimes times_of(const std::string& name, const ScheduleRequest& request) {
  return squeeze(make_schedule(name, request), request.ticks);
}

struct UnitCase {
  const char* name;
  int p, m;
  int makespan;  // in cells
  int peak;      // in microbatches of a rank
};

// F = I = W: makespan and peak of the published building blocks after repeat, squeeze and reorder
// (arXiv 2405.15362), and of ZB-V (arXiv 2401.10241).
const UnitCase kUnit[] = {
    {"zb-v", 4, 8, 51, 4},      {"zb-v", 8, 16, 103, 8},     {"zb-v", 8, 32, 199, 8},
    {"v-half", 4, 8, 53, 3},    {"v-half", 8, 16, 113, 5},   {"v-half", 8, 32, 209, 5},
    {"v-min", 4, 8, 59, 2},     {"v-min", 8, 16, 123, 4},    {"v-min", 8, 32, 219, 4},
    {"1f1b-v", 4, 8, 63, 3},    {"1f1b-v", 8, 16, 129, 6},   {"1f1b-v", 8, 32, 225, 6},
    {"zb-v", 4, 16, 99, 4},     {"zb-v", 16, 64, 399, 16},   {"v-half", 4, 16, 101, 3},
    {"v-half", 16, 64, 425, 9}, {"v-min", 4, 16, 107, 2},    {"v-min", 16, 64, 443, 6},
    {"1f1b-v", 4, 16, 111, 3},  {"1f1b-v", 16, 64, 459, 11},
};

TEST(VFamily, HasTheTimesOfUnitPassesWithinACell) {
  for (const UnitCase& known : kUnit) {
    const ScheduleRequest request = uniform_request(known.p, known.m, 2, {});
    const SqueezedTimes times = times_of(known.name, request);
    EXPECT_LE(times.makespan, known.makespan) << known.name << ' ' << known.p << ' ' << known.m;
    EXPECT_GE(times.makespan, known.makespan - 1) << known.name << ' ' << known.p;
    EXPECT_LE(highest_peak(times), 2 * known.peak) << known.name << ' ' << known.p;
  }
}

TEST(VFamily, ZBVNeverWaitsBetweenARanksUnitPasses) {
  for (const auto& [p, m] : {std::pair(4, 8), {8, 16}, {8, 32}, {5, 10}, {16, 64}}) {
    EXPECT_EQ(times_of("zb-v", uniform_request(p, m, 2, {})).max_span, 6 * m) << p << ' ' << m;
  }
}

// F = 1, I = 1.4, W = 0.6 with 8 ranks and 16 microbatches: bubble of the makespan in 1/1000.
TEST(VFamily, LosesNoMoreThanKnownWhenWeightPassesAreShort) {
  const UniformTicks ticks{5, 7, 3};
  const ScheduleRequest request = uniform_request(8, 16, 2, ticks);
  const std::int64_t work = work_of(request, ticks);
  for (const auto& [name, known] : {std::pair("zb-v", 99), {"v-half", 243}, {"v-min", 414}}) {
    EXPECT_TRUE(bubble_at_most(times_of(name, request).makespan, work, known + 1, 1000)) << name;
  }
}

struct SpanCase {
  const char* name;
  int p;
  int bubble;  // in tenths of a rank's F
};

// F : I : W = 1 : 1.2 : 0.8 and m = 4p: what the longest own span of a rank loses.
TEST(VFamily, LosesNoMoreThanKnownWhenTimesDiffer) {
  for (const auto& [name, p, bubble] : {SpanCase{"zb-v", 4, 8},
                                        {"zb-v", 8, 24},
                                        {"zb-v", 16, 58},
                                        {"v-half", 4, 39},
                                        {"v-half", 8, 115},
                                        {"v-half", 16, 268},
                                        {"v-min", 4, 152},
                                        {"v-min", 8, 333},
                                        {"v-min", 16, 704},
                                        {"1f1b-v", 4, 75},
                                        {"1f1b-v", 8, 165},
                                        {"1f1b-v", 16, 375}}) {
    const UniformTicks ticks{5, 6, 4};
    const ScheduleRequest request = uniform_request(p, 4 * p, 2, ticks);
    EXPECT_LE(times_of(name, request).max_span - work_of(request, ticks), bubble) << name << p;
  }
}

int closed_form_peak(const std::string& name, int p) {
  if (name == "zb-v") return 2 * p;
  if (name == "v-half") return v_half_peak(p);
  return name == "v-min" ? v_min_peak(p) : one_f_one_b_v_peak(p);
}

class VSchedule : public ::testing::TestWithParam<std::string> {};

TEST_P(VSchedule, StaysWithinItsMemoryForAnyTimes) {
  std::mt19937 random(1);
  for (int p = 1; p <= 16; ++p) {
    for (const int m : std::set<int>{1, 2, p - 1, p, p + 1, 2 * p + 1, 3 * p}) {
      if (m < 1) continue;
      ScheduleRequest request = testing::random_request(random, p, m, 2);
      const Schedule schedule = make_schedule(GetParam(), request);
      ASSERT_TRUE(validate(schedule).empty()) << p << ' ' << m;
      EXPECT_LE(highest_peak(squeeze(schedule)), closed_form_peak(GetParam(), p)) << p << ' ' << m;
    }
  }
}

TEST_P(VSchedule, HasTwoChunksByNature) {
  for (const int chunks : {1, 3}) {
    try {
      make_schedule(GetParam(), {.ranks = 2, .microbatches = 2, .chunks = chunks});
      FAIL() << chunks << " chunks were taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("set chunks to 2"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(make_schedule(GetParam(), {.ranks = 2, .microbatches = 2, .group = 2}),
               InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Schedules, VSchedule,
                         ::testing::Values("zb-v", "1f1b-v", "v-half", "v-min"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
