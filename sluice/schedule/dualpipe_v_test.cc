#include <gtest/gtest.h>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"
#include "sluice/schedule/replay_for_tests.h"
#include "sluice/schedule/text.h"

namespace sluice {
namespace {

using testing::replay;

Schedule dualpipe_v(int ranks, int microbatches) {
  return make_schedule("dualpipe-v", {.ranks = ranks, .microbatches = microbatches});
}

std::string passes_of(const Schedule& schedule, std::size_t rank) {
  std::string text;
  for (const Pass& pass : schedule.ranks[rank]) {
    text += (text.empty() ? "" : " ") + to_string(pass);
  }
  return text;
}

// The published step list written out by hand for 2 ranks and 4 microbatches.
TEST(DualPipeV, FollowsThePublishedList) {
  const Schedule schedule = dualpipe_v(2, 4);
  EXPECT_EQ(passes_of(schedule, 0),
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3");
  EXPECT_EQ(passes_of(schedule, 1),
            "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3");
}

// Written by torch 2.13.0: ScheduleDualPipeV with 2 ranks and 5 microbatches, compute_only.
TEST(DualPipeV, IsTheScheduleThatPyTorchWrites) {
  const Schedule torch_schedule = from_csv(
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,"
      "(0F4;3B2)OVERLAP_F_B,(3F3;0B1)OVERLAP_F_B,3B3,(3F4;0B2)OVERLAP_F_B,3B4,0I3,0W3,0I4,0W4\r\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,"
      "(1F4;2B2)OVERLAP_F_B,(2F4;1B2)OVERLAP_F_B,2B3,1B3,2I4,1I4,2W4,1W4\r\n",
      "torch");
  EXPECT_TRUE(validate(torch_schedule).empty());
  EXPECT_EQ(torch_schedule.ranks, dualpipe_v(2, 5).ranks);
}

TEST(DualPipeV, LosesOneStageTimePerRankAndHoldsOneMoreThanTheStages) {
  for (int p = 2; p <= 8; ++p) {
    for (const int m : {2 * p, 2 * p + 1, 4 * p, 5 * p}) {
      const testing::Replay result = replay(dualpipe_v(p, m)).value();
      EXPECT_EQ(result.makespan, 6 * m + (p - 1)) << p << " ranks, " << m;
      EXPECT_EQ(result.peak, std::vector<int>(static_cast<std::size_t>(p), 2 * p + 1));
    }
  }
}

struct FusedCase {
  int p, m;
  testing::PassTimes times;  // tenths of a stage's forward
  std::int64_t makespan;
};

// With the pairs of DeepSeek's engine, one forward and one backward that run as one, the published
// bubble (PP/2 - 1)(F&B + B - 3W) comes out at W = F and a little less otherwise.
TEST(DualPipeV, ReplaysToThePublishedTimesWithFusedPairs) {
  for (const auto& [p, m, times, makespan] : std::vector<FusedCase>{{4, 8, {10, 10, 10}, 540},
                                                                    {4, 16, {10, 10, 10}, 1020},
                                                                    {4, 20, {10, 10, 10}, 1260},
                                                                    {8, 16, {10, 10, 10}, 1100},
                                                                    {8, 20, {10, 10, 10}, 1340},
                                                                    {4, 20, {10, 14, 6}, 1286},
                                                                    {8, 20, {10, 14, 6}, 1414}}) {
    EXPECT_EQ(replay(dualpipe_v(p, m), times, true).value().makespan, makespan)
        << p << " ranks, " << m;
  }
}

TEST(DualPipeV, TakesFewerMicrobatchesThanTheListWasMadeFor) {
  for (int p = 1; p <= 6; ++p) {
    std::int64_t longer = replay(dualpipe_v(p, 2 * p)).value().makespan;
    for (int m = 2 * p - 1; m >= 1; --m) {
      const std::optional<testing::Replay> result = replay(dualpipe_v(p, m));
      ASSERT_TRUE(result.has_value()) << p << " ranks, " << m << " microbatches";
      EXPECT_LT(result->makespan, longer);
      longer = result->makespan;
    }
  }
}

TEST(DualPipeV, IsMadeOfTwoChunks) {
  EXPECT_THROW(make_schedule("dualpipe-v", {.ranks = 2, .microbatches = 4, .chunks = 3}),
               InvalidArgument);
}

}  // namespace
}  // namespace sluice
