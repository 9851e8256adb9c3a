// Golden orders, peaks and bubbles of PO (PipeOffload, arXiv 2503.01328).
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
using testing::replay;

Schedule po(int ranks, int chunks, int microbatches) {
  return make_schedule("po", {.ranks = ranks, .microbatches = microbatches, .chunks = chunks});
}

std::int64_t bubble(const Schedule& schedule, const PassTimes& times) {
  const std::int64_t work = std::int64_t{schedule.num_microbatches} * schedule.num_stages() /
                            schedule.num_ranks() * (times.forward + times.input + times.weight);
  return replay(schedule, times).value().makespan - work;
}

TEST(Po, FollowsTheGoldenOrder) {
  const std::array<std::string, 4> golden{
      "F0.0 F1.0 F0.1 F2.0 F1.1 F3.0 X0.1 F2.1 F4.0 X1.1 F3.1 X0.0 F5.0 X2.1 F4.1 X1.0 F6.0 X3.1 "
      "F5.1 X2.0 F7.0 X4.1 F6.1 X3.0 X5.1 F7.1 X4.0 X6.1 X5.0 X7.1 X6.0 X7.0",
      "F0.0 F1.0 F0.1 F2.0 F1.1 X0.1 F3.0 F2.1 X1.1 F4.0 X0.0 F3.1 X2.1 F5.0 X1.0 F4.1 X3.1 F6.0 "
      "X2.0 F5.1 X4.1 F7.0 X3.0 F6.1 X5.1 X4.0 F7.1 X6.1 X5.0 X7.1 X6.0 X7.0",
      "F0.0 F1.0 F0.1 F2.0 X0.1 F1.1 F3.0 X1.1 F2.1 X0.0 F4.0 X2.1 F3.1 X1.0 F5.0 X3.1 F4.1 X2.0 "
      "F6.0 X4.1 F5.1 X3.0 F7.0 X5.1 F6.1 X4.0 X6.1 F7.1 X5.0 X7.1 X6.0 X7.0",
      "F0.0 F1.0 F0.1 X0.1 F2.0 F1.1 X1.1 F3.0 X0.0 F2.1 X2.1 F4.0 X1.0 F3.1 X3.1 F5.0 X2.0 F4.1 "
      "X4.1 F6.0 X3.0 F5.1 X5.1 F7.0 X4.0 F6.1 X6.1 X5.0 F7.1 X7.1 X6.0 X7.0"};
  const Schedule schedule = po(4, 2, 8);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(in_chunks(schedule, rank), golden[rank]);
  EXPECT_EQ(replay(schedule).value().peak, (std::vector<int>{7, 6, 5, 4}));
  EXPECT_EQ(bubble(schedule, {}), 9);
}

// {ranks, chunks, chunks held on rank 0, bubble} with 4p microbatches and unit times.
TEST(Po, HasTheKnownPeaksAndBubbles) {
  for (const auto& [p, v, peak, expected] : std::vector<std::array<int, 4>>{
           {2, 1, 2, 2},    {2, 2, 3, 3},    {2, 3, 4, 4},     {2, 4, 5, 5},     {2, 5, 6, 6},
           {2, 8, 9, 9},    {3, 1, 3, 4},    {3, 2, 6, 6},     {3, 3, 7, 9},     {3, 4, 10, 11},
           {3, 5, 11, 14},  {3, 8, 18, 21},  {4, 1, 4, 6},     {4, 2, 7, 9},     {4, 3, 8, 14},
           {4, 4, 11, 18},  {4, 5, 12, 23},  {4, 8, 19, 35},   {5, 1, 5, 8},     {5, 2, 8, 13},
           {5, 3, 13, 17},  {5, 4, 14, 24},  {5, 5, 17, 29},   {5, 8, 26, 45},   {6, 1, 6, 10},
           {6, 2, 9, 17},   {6, 3, 14, 22},  {6, 4, 15, 32},   {6, 5, 18, 40},   {6, 8, 27, 62},
           {7, 1, 7, 12},   {7, 2, 12, 19},  {7, 3, 15, 28},   {7, 4, 22, 34},   {7, 5, 23, 45},
           {7, 8, 38, 69},  {8, 1, 8, 14},   {8, 2, 13, 23},   {8, 3, 16, 34},   {8, 4, 23, 41},
           {8, 5, 24, 56},  {8, 8, 39, 87},  {9, 1, 9, 16},    {9, 2, 14, 27},   {9, 3, 19, 38},
           {9, 4, 24, 49},  {9, 5, 33, 57},  {9, 8, 44, 96},   {16, 1, 16, 30},  {16, 2, 25, 51},
           {16, 3, 32, 74}, {16, 4, 43, 93}, {16, 5, 48, 122}, {16, 8, 79, 179}, {8, 16, 71, 172},
           {32, 2, 49, 107}}) {
    const Schedule schedule = po(p, v, 4 * p);
    EXPECT_EQ(replay(schedule).value().peak.front(), peak) << p << " ranks, " << v << " chunks";
    EXPECT_EQ(bubble(schedule, {}), expected) << p << " ranks, " << v << " chunks";
  }
}

TEST(Po, ReplaysToTheKnownBubblesWithUnequalTimes) {
  const PassTimes first{10, 12, 8};
  const PassTimes second{10, 15, 7};
  for (const auto& [p, v, one, two] : std::vector<std::array<int, 4>>{{4, 2, 108, 129},
                                                                      {4, 4, 216, 264},
                                                                      {4, 8, 424, 524},
                                                                      {8, 2, 268, 315},
                                                                      {8, 4, 496, 597},
                                                                      {8, 8, 1032, 1263},
                                                                      {16, 2, 588, 687},
                                                                      {16, 4, 1106, 1333},
                                                                      {16, 8, 2156, 2618}}) {
    EXPECT_EQ(bubble(po(p, v, 4 * p), first), one) << p << " ranks, " << v << " chunks";
    EXPECT_EQ(bubble(po(p, v, 4 * p), second), two) << p << " ranks, " << v << " chunks";
  }
}

TEST(Po, LosesLessThanOnePipelineFillPerChunk) {
  for (int p = 1; p <= 12; ++p) {
    for (int v = 1; v <= 6; ++v) {
      const std::int64_t lost = bubble(po(p, v, 4 * p), {});
      EXPECT_TRUE(p == 1 ? lost == 0 : lost < 3 * v * (p - 1)) << p << ' ' << v << ' ' << lost;
    }
  }
}

TEST(Po, RefusesAGroup) {
  EXPECT_THROW(make_schedule("po", {.ranks = 4, .microbatches = 8, .group = 2}), InvalidArgument);
}

}  // namespace
}  // namespace sluice
