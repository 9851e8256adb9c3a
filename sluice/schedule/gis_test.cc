// Golden orders, peaks and bubbles of PipeOffload (arXiv 2503.01328), section on generalised
// interleaving, for 4 ranks, 2 chunks and 8 microbatches unless said otherwise.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"
#include "sluice/schedule/replay_for_tests.h"

namespace sluice {
namespace {

using testing::in_chunks;
using testing::PassTimes;
using testing::Replay;
using testing::replay;

Schedule gis(int ranks, int chunks, int group, int microbatches) {
  return make_schedule(
      "gis", {.ranks = ranks, .microbatches = microbatches, .chunks = chunks, .group = group});
}

// Time lost on top of what one rank works, in ticks.
std::int64_t bubble(const Schedule& schedule, const PassTimes& times) {
  const std::int64_t work = std::int64_t{schedule.num_microbatches} * schedule.num_stages() /
                            schedule.num_ranks() * (times.forward + times.input + times.weight);
  return replay(schedule, times).value().makespan - work;
}

TEST(Gis, FollowsTheGoldenOrderOfTheFullGroup) {
  const std::array<std::string, 4> golden{
      "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 X0.1 F4.0 X1.1 F5.0 X2.1 F6.0 X3.1 F7.0 X0.0 F4.1 "
      "X1.0 F5.1 X2.0 F6.1 X3.0 F7.1 X4.1 X5.1 X6.1 X7.1 X4.0 X5.0 X6.0 X7.0",
      "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 X0.1 F3.1 X1.1 F4.0 X2.1 F5.0 X3.1 F6.0 X0.0 F7.0 X1.0 "
      "F4.1 X2.0 F5.1 X3.0 F6.1 X4.1 F7.1 X5.1 X6.1 X7.1 X4.0 X5.0 X6.0 X7.0",
      "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 X0.1 F2.1 X1.1 F3.1 X2.1 F4.0 X3.1 F5.0 X0.0 F6.0 X1.0 F7.0 "
      "X2.0 F4.1 X3.0 F5.1 X4.1 F6.1 X5.1 F7.1 X6.1 X7.1 X4.0 X5.0 X6.0 X7.0",
      "F0.0 F1.0 F2.0 F3.0 F0.1 X0.1 F1.1 X1.1 F2.1 X2.1 F3.1 X3.1 F4.0 X0.0 F5.0 X1.0 F6.0 X2.0 "
      "F7.0 X3.0 F4.1 X4.1 F5.1 X5.1 F6.1 X6.1 F7.1 X7.1 X4.0 X5.0 X6.0 X7.0"};
  const Schedule schedule = make_schedule("gis", {.ranks = 4, .microbatches = 8});
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(in_chunks(schedule, rank), golden[rank]);
  EXPECT_EQ(replay(schedule).value().peak, (std::vector<int>{8, 7, 6, 5}));
  EXPECT_EQ(bubble(schedule, {}), 6);
}

TEST(GisH, FollowsTheGoldenOrderOfTheHalfGroup) {
  const std::array<std::string, 4> golden{
      "F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 X0.1 F2.1 X1.1 F3.1 X0.0 F4.0 X1.0 F5.0 X2.1 F4.1 X3.1 F5.1 "
      "X2.0 F6.0 X3.0 F7.0 X4.1 F6.1 X5.1 F7.1 X4.0 X5.0 X6.1 X7.1 X6.0 X7.0",
      "F0.0 F1.0 F0.1 F1.1 F2.0 X0.1 F3.0 X1.1 F2.1 X0.0 F3.1 X1.0 F4.0 X2.1 F5.0 X3.1 F4.1 X2.0 "
      "F5.1 X3.0 F6.0 X4.1 F7.0 X5.1 F6.1 X4.0 F7.1 X5.0 X6.1 X7.1 X6.0 X7.0",
      "F0.0 F1.0 F0.1 F1.1 X0.1 F2.0 X1.1 F3.0 X0.0 F2.1 X1.0 F3.1 X2.1 F4.0 X3.1 F5.0 X2.0 F4.1 "
      "X3.0 F5.1 X4.1 F6.0 X5.1 F7.0 X4.0 F6.1 X5.0 F7.1 X6.1 X7.1 X6.0 X7.0",
      "F0.0 F1.0 F0.1 X0.1 F1.1 X1.1 F2.0 X0.0 F3.0 X1.0 F2.1 X2.1 F3.1 X3.1 F4.0 X2.0 F5.0 X3.0 "
      "F4.1 X4.1 F5.1 X5.1 F6.0 X4.0 F7.0 X5.0 F6.1 X6.1 F7.1 X7.1 X6.0 X7.0"};
  const Schedule schedule = make_schedule("gis-h", {.ranks = 4, .microbatches = 8});
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(in_chunks(schedule, rank), golden[rank]);
  EXPECT_EQ(replay(schedule).value().peak, (std::vector<int>{6, 5, 4, 3}));
  EXPECT_EQ(bubble(schedule, {}), 8);
}

TEST(Gis, MeetsTheClosedFormsWhenTheGroupDividesTheMicrobatches) {
  for (int p = 2; p <= 9; ++p) {
    for (int v = 1; v <= 5; ++v) {
      for (int g = (p + 1) / 2; g <= p; ++g) {
        for (const int groups : {2, 3, 5}) {
          const Schedule schedule = gis(p, v, g, groups * g);
          EXPECT_EQ(bubble(schedule, {}), 2 * (p - 1) + (p - g) * (v - 1))
              << p << " ranks, " << v << " chunks, group " << g << ", " << groups << " groups";
          const std::vector<int> peak = replay(schedule).value().peak;
          for (int rank = 0; rank < p; ++rank) {
            EXPECT_EQ(peak[static_cast<std::size_t>(rank)], g * (v - 1) + p - rank);
          }
        }
      }
    }
  }
}

struct BubbleCase {
  int p, v, m, g;
  PassTimes times;  // tenths of a chunk's time
  std::int64_t bubble;
};

TEST(Gis, ReplaysToTheKnownBubbles) {
  for (const auto& [p, v, m, g, times, expected] :
       std::vector<BubbleCase>{// Fewer, or not a multiple of, the group's microbatches.
                               {4, 2, 2, 2, {10, 10, 10}, 80},
                               {4, 2, 3, 2, {10, 10, 10}, 100},
                               {4, 2, 2, 3, {10, 10, 10}, 80},
                               {4, 2, 4, 3, {10, 10, 10}, 90},
                               {4, 2, 5, 4, {10, 10, 10}, 80},
                               {4, 2, 17, 4, {10, 10, 10}, 80},
                               {8, 2, 16, 5, {10, 10, 10}, 230},
                               {8, 3, 3, 6, {10, 10, 10}, 280},
                               {8, 3, 32, 6, {10, 10, 10}, 260},
                               {5, 2, 21, 3, {10, 10, 10}, 100},
                               // Unequal times.
                               {8, 4, 32, 4, {10, 12, 8}, 322},
                               {8, 4, 32, 4, {10, 15, 7}, 391},
                               {8, 4, 24, 6, {10, 12, 8}, 214},
                               {8, 4, 20, 5, {10, 14, 6}, 294},
                               {5, 3, 15, 4, {10, 14, 6}, 144},
                               {4, 2, 16, 3, {10, 12, 8}, 108}}) {
    EXPECT_EQ(bubble(gis(p, v, g, m), times), expected)
        << p << " ranks, " << v << " chunks, " << m << " microbatches, group " << g;
  }
}

TEST(Gis, HoldsTheKnownPeaksWithFewMicrobatches) {
  // {p, v, g, m, chunks held on rank 0}
  for (const auto& [p, v, g, m, peak] : std::vector<std::array<int, 5>>{
           {4, 2, 2, 2, 4}, {4, 2, 2, 3, 5}, {4, 2, 3, 4, 7}, {4, 2, 4, 2, 4}, {8, 3, 6, 8, 20}}) {
    EXPECT_EQ(replay(gis(p, v, g, m)).value().peak.front(), peak) << p << v << g << m;
  }
}

TEST(Gis, RefusesGroupsOutsideHalfToAllRanksAndNamesTheRange) {
  EXPECT_THROW(gis(8, 2, 3, 8), InvalidArgument);
  EXPECT_THROW(gis(8, 2, 9, 8), InvalidArgument);
  EXPECT_THROW(make_schedule("gis-h", {.ranks = 8, .microbatches = 8, .group = 8}),
               InvalidArgument);
  try {
    gis(7, 2, 3, 8);
    FAIL() << "group 3 of 7 ranks was accepted";
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("from 4"), std::string::npos) << what;
    EXPECT_NE(what.find("to 7"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace sluice
