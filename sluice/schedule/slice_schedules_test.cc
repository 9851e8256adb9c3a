// seq1f1b, slimpipe and slice-v: golden orders, what is in flight, what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

// "F<microbatch>.<slice>", with the chunk as a third number when there are several.
std::string order_of(const Schedule& schedule, std::size_t rank) {
  std::ostringstream text;
  const auto& stages = schedule.placement.stages_of(static_cast<int>(rank));
  for (const Pass& pass : schedule.ranks[rank]) {
    if (text.tellp() > 0) text << ' ';
    text << letter(pass.kind) << pass.microbatch << '.' << pass.slice;
    if (stages.size() > 1) text << '.' << schedule.placement.chunk_of(pass.stage);
  }
  return text.str();
}

// The most forwards a rank holds until the pass that frees them.
std::vector<int> peaks(const Schedule& schedule) {
  std::vector<int> result;
  for (const std::vector<Pass>& passes : schedule.ranks) {
    int held = 0;
    int most = 0;
    for (const Pass& pass : passes) {
      if (pass.kind == PassKind::kForward) most = std::max(most, ++held);
      if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) --held;
    }
    result.push_back(most);
  }
  return result;
}

std::string refusal(std::string_view name, const ScheduleRequest& request) {
  try {
    make_schedule(name, request);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(SlimPipe, HasTheGoldenOrderWithOneChunk) {
  const Schedule schedule = make_schedule("slimpipe", {.ranks = 4, .microbatches = 2, .slices = 4});
  EXPECT_EQ(order_of(schedule, 0),
            "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 F1.2 F1.3 B0.3 B0.2 B0.1 B0.0 B1.3 B1.2 B1.1 B1.0");
  EXPECT_EQ(order_of(schedule, 1), order_of(schedule, 0));
  EXPECT_EQ(order_of(schedule, 2),
            "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 B0.3 F1.2 B0.2 F1.3 B0.1 B0.0 B1.3 B1.2 B1.1 B1.0");
  EXPECT_EQ(order_of(schedule, 3),
            "F0.0 F0.1 F0.2 F0.3 B0.3 F1.0 B0.2 F1.1 B0.1 F1.2 B0.0 F1.3 B1.3 B1.2 B1.1 B1.0");
}

TEST(SlimPipe, HasTheGoldenOrderWithTwoChunks) {
  const Schedule schedule =
      make_schedule("slimpipe", {.ranks = 2, .microbatches = 2, .chunks = 2, .slices = 4});
  EXPECT_EQ(order_of(schedule, 0),
            "F0.0.0 F0.1.0 F0.0.1 F0.1.1 F0.2.0 F0.3.0 F0.2.1 F0.3.1 F1.0.0 F1.1.0 "
            "B0.3.1 F1.0.1 B0.2.1 F1.1.1 B0.3.0 F1.2.0 B0.2.0 F1.3.0 B0.1.1 F1.2.1 B0.0.1 F1.3.1 "
            "B0.1.0 B0.0.0 B1.3.1 B1.2.1 B1.3.0 B1.2.0 B1.1.1 B1.0.1 B1.1.0 B1.0.0");
  EXPECT_EQ(order_of(schedule, 1),
            "F0.0.0 F0.1.0 F0.0.1 F0.1.1 F0.2.0 F0.3.0 F0.2.1 F0.3.1 "
            "B0.3.1 F1.0.0 B0.2.1 F1.1.0 B0.3.0 F1.0.1 B0.2.0 F1.1.1 B0.1.1 F1.2.0 B0.0.1 F1.3.0 "
            "B0.1.0 F1.2.1 B0.0.0 F1.3.1 B1.3.1 B1.2.1 B1.3.0 B1.2.0 B1.1.1 B1.0.1 B1.1.0 B1.0.0");
}

// min(m n v, n v + 2 (p - 1 - r)) on rank r.
TEST(SlimPipe, HoldsTheFormulasSlicesInFlight) {
  for (int p = 1; p <= 6; ++p) {
    for (const int n : {p, p + 1, 2 * p, 3 * p + 1}) {
      for (const int v : {1, 2, 3}) {
        for (const int m : {1, 2, 5}) {
          const std::vector<int> found = peaks(
              make_schedule("slimpipe", {.ranks = p, .microbatches = m, .chunks = v, .slices = n}));
          for (int rank = 0; rank < p; ++rank) {
            EXPECT_EQ(found[static_cast<std::size_t>(rank)],
                      std::min(m * n * v, n * v + 2 * (p - 1 - rank)))
                << p << " ranks, " << n << " slices, " << v << " chunks, " << m << ", rank "
                << rank;
          }
        }
      }
    }
  }
}

TEST(SlimPipe, WalksInTheLeastCycleThatKeepsAllRanksBusyUnlessTold) {
  const auto second_chunk_at = [](int group) {
    const Schedule schedule = make_schedule(
        "slimpipe", {.ranks = 3, .microbatches = 1, .chunks = 2, .slices = 12, .group = group});
    const auto& passes = schedule.ranks[0];
    return std::find_if(passes.begin(), passes.end(),
                        [](const Pass& pass) { return pass.stage == 3; }) -
           passes.begin();
  };
  EXPECT_EQ(second_chunk_at(0), 3);
  EXPECT_EQ(second_chunk_at(4), 4);
  EXPECT_EQ(second_chunk_at(12), 12);
}

TEST(SlimPipe, RefusesFewerSlicesThanRanksWithWhatWorks) {
  const std::string text = refusal("slimpipe", {.ranks = 8, .microbatches = 4, .slices = 6});
  EXPECT_NE(text.find("slices is 6 and ranks is 8"), std::string::npos) << text;
  EXPECT_NE(text.find("set slices to 8 or 16"), std::string::npos) << text;
  EXPECT_NE(text.find("ranks to 6"), std::string::npos) << text;
}

TEST(SlimPipe, RefusesACycleThatDoesNotFitWithThoseThatDo) {
  for (const int group : {2, 5, 24}) {
    const std::string text =
        refusal("slimpipe", {.ranks = 3, .microbatches = 4, .slices = 12, .group = group});
    EXPECT_NE(text.find("set group to one of 3, 4, 6, 12"), std::string::npos) << text;
  }
}

TEST(Seq1F1B, WarmsUpWithOneSliceMoreForEachRankBelow) {
  for (int p = 1; p <= 5; ++p) {
    for (const int n : {1, 2, p, 2 * p + 1}) {
      const std::vector<int> found =
          peaks(make_schedule("seq1f1b", {.ranks = p, .microbatches = 4, .slices = n}));
      for (int rank = 0; rank < p; ++rank) {
        EXPECT_EQ(found[static_cast<std::size_t>(rank)], std::min(4 * n, n + p - 1 - rank));
      }
    }
  }
}

TEST(Seq1F1B, IsOneFOneBWithOneSlice) {
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {1, 3, 8}) {
      EXPECT_EQ(make_schedule("seq1f1b", {.ranks = p, .microbatches = m}).ranks,
                make_schedule("1f1b", {.ranks = p, .microbatches = m}).ranks);
    }
  }
}

TEST(SliceV, RunsSixPassesForEverySliceOnEveryRank) {
  const Schedule schedule = make_schedule("slice-v", {.ranks = 4, .microbatches = 3, .slices = 5});
  for (const std::vector<Pass>& passes : schedule.ranks) EXPECT_EQ(passes.size(), 6U * 3 * 5);
}

// 2 n + 2 (p - 1) slice-chunks on every rank: equal memory.
TEST(SliceV, HoldsTheSameOnAllRanks) {
  for (int p = 2; p <= 6; ++p) {
    for (const int n : {p, p + 1, 2 * p}) {
      const std::vector<int> found =
          peaks(make_schedule("slice-v", {.ranks = p, .microbatches = 5, .slices = n}));
      for (const int peak : found) EXPECT_EQ(peak, 2 * n + 2 * (p - 1)) << p << " ranks " << n;
    }
  }
}

TEST(SliceSchedules, RefuseChunksAndGroupsTheyDoNotHave) {
  EXPECT_NE(refusal("seq1f1b", {.ranks = 2, .chunks = 2, .slices = 4}).find("chunks to 1"),
            std::string::npos);
  EXPECT_NE(refusal("slice-v", {.ranks = 2, .chunks = 3, .slices = 4}).find("chunks to 2"),
            std::string::npos);
  EXPECT_NE(refusal("seq1f1b", {.ranks = 2, .slices = 4, .group = 2}).find("group"),
            std::string::npos);
  EXPECT_NE(refusal("slice-v", {.ranks = 2, .slices = 4, .group = 2}).find("group"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
