#include <gtest/gtest.h>

#include <algorithm>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/replay_for_tests.h"

namespace sluice {
namespace {

using testing::in_chunks;
using testing::replay;

Schedule interleaved(int ranks, int chunks, int group, int microbatches) {
  return make_schedule(
      "interleaved",
      {.ranks = ranks, .microbatches = microbatches, .chunks = chunks, .group = group});
}

std::vector<std::pair<int, int>> order_of(const Schedule& schedule, std::size_t rank,
                                          PassKind kind) {
  std::vector<std::pair<int, int>> order;
  for (const Pass& pass : schedule.ranks[rank]) {
    if (pass.kind != kind) continue;
    order.emplace_back(pass.microbatch, schedule.placement.chunk_of(pass.stage));
  }
  return order;
}

// The group table printed in Megatron-Core's documentation of its interleaved schedule.
TEST(Interleaved, FollowsTheGoldenGroupTable) {
  const Schedule schedule = interleaved(2, 2, 3, 5);
  const std::vector<std::pair<int, int>> table{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1},
                                               {2, 1}, {3, 0}, {4, 0}, {3, 1}, {4, 1}};
  std::vector<std::pair<int, int>> mirrored = table;
  for (auto& [microbatch, chunk] : mirrored) chunk = 1 - chunk;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(order_of(schedule, rank, PassKind::kForward), table);
    EXPECT_EQ(order_of(schedule, rank, PassKind::kBackward), mirrored);
  }
}

TEST(Interleaved, WarmsUpThenAlternatesThenDrains) {
  EXPECT_EQ(in_chunks(interleaved(2, 2, 0, 4), 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(in_chunks(interleaved(2, 2, 0, 4), 1),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

TEST(Interleaved, MeetsTheClosedFormsWhenTheGroupDividesTheMicrobatches) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 2; v <= 4; ++v) {
      for (const int groups : {2, 3}) {
        const Schedule schedule = interleaved(p, v, 0, groups * p);
        const testing::Replay result = replay(schedule).value();
        EXPECT_EQ(result.makespan, 3 * groups * p * v + 3 * (p - 1)) << p << " ranks, " << v;
        EXPECT_EQ(*std::max_element(result.peak.begin(), result.peak.end()), p * v + p - 1);
      }
    }
  }
}

TEST(Interleaved, IsOneFOneBWithOneChunk) {
  EXPECT_EQ(interleaved(5, 1, 0, 7).ranks,
            make_schedule("1f1b", {.ranks = 5, .microbatches = 7}).ranks);
}

TEST(Interleaved, HoldsLessWithGroupsSmallerThanTheRanks) {
  const auto peak = [](int group) {
    return replay(interleaved(8, 3, group, 24)).value().peak.front();
  };
  EXPECT_LT(peak(4), peak(6));
  EXPECT_LT(peak(6), peak(8));
}

TEST(Interleaved, AGroupBeyondTheMicrobatchesIsOneGroup) {
  EXPECT_EQ(interleaved(3, 2, 1000000000, 7).ranks, interleaved(3, 2, 7, 7).ranks);
}

TEST(BreadthFirst, RunsAllForwardsChunkByChunkFirst) {
  const Schedule schedule =
      make_schedule("breadth-first", {.ranks = 2, .microbatches = 3, .chunks = 2});
  EXPECT_EQ(in_chunks(schedule, 1), "F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1 B1.1 B2.1 B0.0 B1.0 B2.0");
}

TEST(BreadthFirst, MeetsTheClosedForm) {
  for (int p = 1; p <= 6; ++p) {
    for (int v = 1; v <= 4; ++v) {
      // Fewer microbatches than ranks leave the first rank waiting for its next chunk.
      for (int m = p; m <= 3 * p; ++m) {
        const Schedule schedule =
            make_schedule("breadth-first", {.ranks = p, .microbatches = m, .chunks = v});
        const testing::Replay result = replay(schedule).value();
        EXPECT_EQ(result.makespan, 3 * m * v + 3 * (p - 1)) << p << ' ' << v << ' ' << m;
        EXPECT_EQ(result.peak, std::vector<int>(static_cast<std::size_t>(p), m * v));
      }
    }
  }
}

}  // namespace
}  // namespace sluice
