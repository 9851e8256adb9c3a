#include "sluice/trace/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sluice/common/errors.h"
#include "sluice/trace/timelines_for_tests.h"

namespace sluice {
namespace {

// Predicted in milliseconds, measured in nanoseconds, 10 % slower; the mean is of 1 and 3 ms.
Timeline predicted() {
  Timeline timeline;
  timeline.seconds_per_tick = 1e-3;
  timeline.ranks = {{pass_span(PassKind::kForward, 0, 0, 0, 1),
                     pass_span(PassKind::kForward, 0, 1, 1, 4),
                     pass_span(PassKind::kBackward, 0, 0, 6, 10)}};
  return timeline;
}

Timeline measured() {
  Timeline timeline = predicted();
  timeline.seconds_per_tick = 1e-9;
  for (Span& span : timeline.ranks[0]) {
    span.begin = 500 + span.begin * 1'100'000;
    span.end = 500 + span.end * 1'100'000;
  }
  return timeline;
}

TEST(CompareTimes, GivesMakespanAndMeansInSeconds) {
  const auto rows = compare_times(predicted(), measured());
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].what, "makespan");
  EXPECT_DOUBLE_EQ(rows[0].predicted, 10e-3);
  EXPECT_DOUBLE_EQ(rows[0].measured, 11e-3);
  EXPECT_EQ(rows[1].what, "F forward, mean");
  EXPECT_DOUBLE_EQ(rows[1].predicted, 2e-3);
  EXPECT_DOUBLE_EQ(rows[1].measured, 2.2e-3);
  EXPECT_EQ(rows[2].what, "B backward, mean");
  for (const Comparison& row : rows) EXPECT_NEAR(row.ratio(), 1.1, 1e-12);
}

TEST(CompareTimes, ListsAKindThatOnlyOneSideHas) {
  Timeline extra = measured();
  extra.ranks[0].push_back(pass_span(PassKind::kBackwardWeight, 0, 0, 11'000'500, 12'000'500));
  const auto rows = compare_times(predicted(), extra);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[3].predicted, 0.0);
  EXPECT_TRUE(std::isinf(rows[3].ratio()));
}

TEST(CompareTimes, CountsOnlyPasses) {
  const Timeline timeline = timeline_with_messages();
  const auto rows = compare_times(timeline, timeline);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_DOUBLE_EQ(rows[1].measured, 1e-6);
  EXPECT_EQ(rows[1].ratio(), 1.0);
}

TEST(CompareMemory, NamesRankAndClassAndLeavesOutUnusedOnes) {
  MemoryPeaks expected;
  expected.by_class[static_cast<std::size_t>(MemoryClass::kWeights)] = 4 << 20;
  expected.by_class[static_cast<std::size_t>(MemoryClass::kActivations)] = 2 << 20;
  expected.total = 6 << 20;
  MemoryPeaks seen = expected;
  seen.by_class[static_cast<std::size_t>(MemoryClass::kActivations)] = 3 << 20;
  seen.total = 7 << 20;
  const auto rows = compare_memory({expected}, {seen});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].what, "rank 0 weights");
  EXPECT_EQ(rows[0].ratio(), 1.0);
  EXPECT_EQ(rows[1].what, "rank 0 activations");
  EXPECT_EQ(rows[1].ratio(), 1.5);
  EXPECT_EQ(rows[2].what, "rank 0 total");
  EXPECT_EQ(show_memory(rows),
            "                     predicted MiB    measured MiB  measured/predicted\n"
            "rank 0 weights               4.000           4.000               1.000\n"
            "rank 0 activations           2.000           3.000               1.500\n"
            "rank 0 total                 6.000           7.000               1.167\n");
}

TEST(CompareMemory, RefusesDifferentNumbersOfRanks) {
  EXPECT_THROW(compare_memory(std::vector<MemoryPeaks>(1), std::vector<MemoryPeaks>(2)),
               InternalError);
}

TEST(CompareTimes, TableLabelsItsColumns) {
  EXPECT_EQ(show_times(compare_times(predicted(), measured())),
            "                    predicted ms     measured ms  measured/predicted\n"
            "makespan                  10.000          11.000               1.100\n"
            "F forward, mean            2.000           2.200               1.100\n"
            "B backward, mean           4.000           4.400               1.100\n");
}

}  // namespace
}  // namespace sluice
