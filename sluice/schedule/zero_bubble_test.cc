// ZB-1p and ZB-2p against published numbers. F, I and W below are one stage's; rates are 1 - work /
// longest own span of a stage.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "sluice/common/errors.h"
#include "sluice/schedule/replay_for_tests.h"
#include "sluice/schedule/schedules_for_tests.h"

namespace sluice {
namespace {

using testing::bubble_at_most;
using testing::highest_peak;
using testing::uniform_request;
using testing::UniformTicks;
using testing::work_of;

struct Row {
  const char* model;
  int p, m;
  UniformTicks ticks;              // microseconds
  std::int64_t zb_1p, zb_2p, f1b;  // bubble rates, in 1/10000
};

// Zero Bubble Pipeline Parallelism, arXiv 2401.10241: profiled pass times and the bubble rates of
// 1F1B, ZB-1p and ZB-2p that the paper computes from them.
const Row kPublished[] = {
    {"1.5B", 8, 24, {18522, 18086, 9337, 601}, 1585, 433, 2431},
    {"1.5B", 8, 64, {18546, 18097, 9321, 762}, 674, 26, 1240},
    {"6.2B", 8, 64, {29935, 29621, 19388, 535}, 554, 10, 1091},
    {"14.6B", 16, 128, {11325, 11308, 8109, 378}, 576, 28, 1251},
    {"28.3B", 32, 256, {10402, 10248, 7698, 460}, 594, 18, 1352},
};

SqueezedTimes times_of(const char* name, const ScheduleRequest& request) {
  return squeeze(make_schedule(name, request), request.ticks);
}

TEST(ZeroBubble, LosesNoMoreThanPublished) {
  for (const Row& row : kPublished) {
    const ScheduleRequest request = uniform_request(row.p, row.m, 1, row.ticks);
    const std::int64_t work = work_of(request, row.ticks);
    const auto within = [&](const char* name, std::int64_t rate) {
      return bubble_at_most(times_of(name, request).max_span, work, rate + 1, 10000);
    };
    EXPECT_TRUE(within("zb-1p", row.zb_1p)) << row.model << ' ' << row.m;
    EXPECT_TRUE(within("zb-2p", row.zb_2p)) << row.model << ' ' << row.m;
  }
}

// The span definition itself, on an order without any search.
TEST(ZeroBubble, MeasuresThePublishedRatesOf1F1B) {
  for (const Row& row : kPublished) {
    const ScheduleRequest request = uniform_request(row.p, row.m, 1, row.ticks);
    const std::int64_t span = times_of("1f1b", request).max_span;
    const std::int64_t work = work_of(request, row.ticks);
    EXPECT_TRUE(bubble_at_most(span, work, row.f1b + 1, 10000)) << row.model << ' ' << row.m;
    EXPECT_FALSE(bubble_at_most(span, work, row.f1b - 1, 10000)) << row.model << ' ' << row.m;
  }
}

TEST(ZeroBubble, HasTheTimesAndPeaksOfUnitPasses) {
  for (const auto& [p, m] : {std::pair(4, 8), {8, 16}, {8, 32}}) {
    const ScheduleRequest request = uniform_request(p, m, 1, {});
    const SqueezedTimes one = times_of("zb-1p", request);
    EXPECT_EQ(one.makespan, 3 * m + p - 1);
    EXPECT_EQ(highest_peak(one), p);
    const SqueezedTimes two = times_of("zb-2p", request);
    EXPECT_EQ(two.makespan, 3 * m + p - 1);
    EXPECT_EQ(two.max_span, 3 * m);
    EXPECT_EQ(highest_peak(two), 2 * p);
  }
}

// (p-1)(F+I-W) for any times with W <= F, I.
TEST(ZeroBubble, ZB1pHasItsClosedForm) {
  for (const UniformTicks& ticks : {UniformTicks{10, 14, 6}, {10, 12, 8}, {7, 7, 7}, {9, 8, 3}}) {
    for (const int p : {1, 2, 3, 4, 7, 8, 16}) {
      const ScheduleRequest request = uniform_request(p, 4 * p, 1, ticks);
      EXPECT_EQ(times_of("zb-1p", request).max_span - work_of(request, ticks),
                (p - 1) * (ticks.forward + ticks.input - ticks.weight))
          << p;
    }
  }
}

// With F = 1, I = 1.4, W = 0.6 and 8 ranks, 16 microbatches: 20.8 % and 14.0 % of the makespan.
TEST(ZeroBubble, LosesAsKnownWhenWeightPassesAreShort) {
  const ScheduleRequest request = uniform_request(8, 16, 1, {10, 14, 6});
  EXPECT_EQ(times_of("zb-1p", request).makespan, 606);
  EXPECT_EQ(times_of("zb-2p", request).makespan, 558);
}

// With 2p microbatches until W, the last stage can put off at most 2p W past its last I, and rank 0
// waits for the rest: (p-1)(F+I) - (2p-1)W, here 3.4 and 8.2 at F = 1, I = 1.2, W = 0.8.
TEST(ZeroBubble, ZB2pReachesItsBoundWhenAllOfAMicrobatchStaysUntilW) {
  for (const int p : {8, 16}) {
    ScheduleRequest request = uniform_request(p, 4 * p, 1, {10, 12, 8});
    request.weight_residue_percent = 100;
    const SqueezedTimes times = times_of("zb-2p", request);
    EXPECT_EQ(times.max_span - std::int64_t{30} * 4 * p, (p - 1) * 22 - (2 * p - 1) * 8) << p;
    EXPECT_LE(highest_peak(times), 2 * p);
  }
}

// What a rank holds in percent of a microbatch: all from F to I, the residue from I to W.
std::int64_t highest_load(const std::vector<Pass>& passes, int residue) {
  std::int64_t held = 0;
  std::int64_t highest = 0;
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kForward) held += 100;
    if (pass.kind == PassKind::kBackwardInput) held -= 100 - residue;
    if (pass.kind == PassKind::kBackwardWeight) held -= residue;
    highest = std::max(highest, held);
  }
  return highest;
}

TEST(ZeroBubble, StaysWithinItsMemoryForAnyTimes) {
  std::mt19937 random(1);
  for (int p = 1; p <= 16; ++p) {
    for (const int m : std::set<int>{1, 2, p - 1, p, p + 1, 2 * p + 1, 3 * p}) {
      if (m < 1) continue;
      ScheduleRequest request = testing::random_request(random, p, m, 1);
      const Schedule one = make_schedule("zb-1p", request);
      ASSERT_TRUE(validate(one).empty()) << p << ' ' << m;
      for (const std::vector<Pass>& passes : one.ranks)
        EXPECT_LE(highest_load(passes, 100), 100 * p);
      for (const int residue : {0, 37, 50, 100}) {
        request.weight_residue_percent = residue;
        const Schedule two = make_schedule("zb-2p", request);
        ASSERT_TRUE(validate(two).empty()) << p << ' ' << m << ' ' << residue;
        for (const std::vector<Pass>& passes : two.ranks) {
          EXPECT_LE(highest_load(passes, residue), 200 * p) << m << ' ' << residue;
        }
      }
    }
  }
}

TEST(ZeroBubble, RefusesSizesItDoesNotHave) {
  EXPECT_THROW(make_schedule("zb-1p", {.ranks = 2, .microbatches = 2, .chunks = 2}),
               InvalidArgument);
  EXPECT_THROW(make_schedule("zb-2p", {.ranks = 2, .microbatches = 2, .group = 1}),
               InvalidArgument);
  EXPECT_THROW(
      make_schedule("zb-2p", {.ranks = 2, .microbatches = 2, .weight_residue_percent = 101}),
      InvalidArgument);
  EXPECT_THROW(make_schedule("zb-1p", {.ranks = 2, .microbatches = 2, .ticks = {.forward = {1}}}),
               InvalidArgument);
}

}  // namespace
}  // namespace sluice
