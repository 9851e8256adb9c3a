#include "sluice/trace/activations.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sluice/trace/timelines_for_tests.h"

namespace sluice {
namespace {

std::int64_t peak(const std::vector<ActivationSample>& samples) {
  std::int64_t highest = 0;
  for (const ActivationSample& sample : samples) highest = std::max(highest, sample.count);
  return highest;
}

TEST(SavedActivations, OfOneF1BPeakAtTheRanksThatFollow) {
  const auto curves = saved_activations(unit_timeline("1f1b", 4, 9));
  ASSERT_EQ(curves.size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(peak(curves[static_cast<std::size_t>(rank)]), 4 - rank);
  }
}

TEST(SavedActivations, EndAtNothingAndNeverGoBackInTime) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "gis"}) {
    for (const auto& samples : saved_activations(unit_timeline(name, 3, 5))) {
      ASSERT_FALSE(samples.empty());
      EXPECT_EQ(samples.back().count, 0);
      EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end(),
                                 [](const auto& a, const auto& b) { return a.time < b.time; }));
    }
  }
}

TEST(SavedActivations, AreHeldFromInputToWeightBackward) {
  Timeline timeline;
  timeline.ranks = {{pass_span(PassKind::kForward, 0, 0, 0, 2),
                     pass_span(PassKind::kBackwardInput, 0, 0, 5, 6),
                     pass_span(PassKind::kBackwardWeight, 0, 0, 8, 9)}};
  const auto curves = saved_activations(timeline);
  ASSERT_EQ(curves[0].size(), 2U);
  EXPECT_EQ(curves[0][0].time, 0);
  EXPECT_EQ(curves[0][1].time, 9);
}

TEST(SavedActivations, OfForwardsAloneAreNone) {
  Timeline timeline;
  timeline.ranks = {{pass_span(PassKind::kForward, 0, 0, 0, 2)}};
  EXPECT_TRUE(saved_activations(timeline)[0].empty());
}

}  // namespace
}  // namespace sluice
