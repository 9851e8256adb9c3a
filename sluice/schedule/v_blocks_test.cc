#include "sluice/schedule/v_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "sluice/schedule/schedules_for_tests.h"

namespace sluice {
namespace {

// Building blocks of arXiv 2405.15362 for 4 and 8 ranks.
TEST(VBlocks, HaveThePublishedCells) {
  EXPECT_EQ(v_half_block(4),
            (Block{{0, 10, 14, 25}, {2, 9, 16, 24}, {4, 8, 18, 23}, {6, 7, 20, 22}}));
  EXPECT_EQ(v_min_block(4), (Block{{0, 7, 8, 15}, {1, 6, 9, 14}, {2, 5, 10, 13}, {3, 4, 11, 12}}));
  EXPECT_EQ(v_half_block(8), (Block{{0, 22, 26, 49},
                                    {2, 21, 28, 48},
                                    {4, 20, 30, 47},
                                    {6, 19, 32, 46},
                                    {8, 18, 34, 45},
                                    {10, 17, 36, 44},
                                    {12, 16, 38, 43},
                                    {14, 15, 40, 42}}));
  EXPECT_EQ(v_min_block(8), (Block{{0, 15, 16, 31},
                                   {1, 14, 17, 30},
                                   {2, 13, 18, 29},
                                   {3, 12, 19, 28},
                                   {4, 11, 20, 27},
                                   {5, 10, 21, 26},
                                   {6, 9, 22, 25},
                                   {7, 8, 23, 24}}));
}

bool collide(int a, int length_a, int b, int length_b) {
  for (int i = 0; i < length_a; ++i) {
    for (int k = 0; k < length_b; ++k) {
      if ((a + i - b - k) % 6 == 0) return true;
    }
  }
  return false;
}

bool is_free(const BlockRow& row, int cell) {
  return !collide(row.forward_0, 1, cell, 2) && !collide(row.forward_1, 1, cell, 2);
}

/// When the gradient of the first microbatch is back on rank 0 at the earliest, over all cells for
/// the backwards of chunk 1 on rank `r` and after, which may start at `from` or later there.
int earliest_return(Block& block, std::size_t r, int from) {
  if (r == block.size()) {
    int cell = from;
    for (std::size_t up = block.size(); up-- > 0; cell += 2) {
      const BlockRow& row = block[up];
      while (!is_free(row, cell) || collide(row.backward_1, 2, cell, 2)) ++cell;
    }
    return cell - 2;
  }
  int best = std::numeric_limits<int>::max();
  for (int cell = from; cell < from + 6; ++cell) {
    if (!is_free(block[r], cell)) continue;
    block[r].backward_1 = cell;
    // Chunk 0 needs two neighbouring cells that are left.
    bool has_room = false;
    for (int other = 0; other < 6; ++other) {
      has_room = has_room || (is_free(block[r], other) && !collide(cell, 2, other, 2));
    }
    if (has_room) best = std::min(best, earliest_return(block, r + 1, cell + 2));
  }
  return best;
}

TEST(VBlocks, Give1F1BVTheShortestWayBack) {
  for (int p = 1; p <= 7; ++p) {
    const Block block = one_f_one_b_v_block(p);
    Block tried = block;
    EXPECT_EQ(block[0].backward_0, earliest_return(tried, 0, block[0].forward_1 + 1)) << p;
  }
}

struct Kind {
  const char* name;
  Block (*block)(int);
  int (*peak)(int);
  int backward_cells;
};

constexpr std::array<Kind, 3> kKinds{{{"v-half", v_half_block, v_half_peak, 1},
                                      {"v-min", v_min_block, v_min_peak, 1},
                                      {"1f1b-v", one_f_one_b_v_block, one_f_one_b_v_peak, 2}}};

TEST(VBlocks, NeverRunTwoPassesOfARankAtOnce) {
  for (const Kind& kind : kKinds) {
    for (int p = 1; p <= 40; ++p) {
      for (const BlockRow& row : kind.block(p)) {
        std::array<int, 6> used{};
        const auto use = [&](int at) { ++used[static_cast<std::size_t>(at % 6)]; };
        use(row.forward_0);
        use(row.forward_1);
        for (int i = 0; i < kind.backward_cells; ++i) {
          use(row.backward_0 + i);
          use(row.backward_1 + i);
        }
        for (const int count : used) EXPECT_LE(count, 1) << kind.name << ' ' << p;
      }
    }
  }
}

TEST(VBlocks, RunWhatAPassNeedsBeforeIt) {
  for (const Kind& kind : kKinds) {
    for (int p = 1; p <= 40; ++p) {
      const Block block = kind.block(p);
      for (std::size_t r = 0; r < block.size(); ++r) {
        const bool last = r + 1 == block.size();
        const BlockRow& here = block[r];
        if (r > 0) {
          EXPECT_GT(here.forward_0, block[r - 1].forward_0);
        }
        EXPECT_GT(here.forward_1, last ? here.forward_0 : block[r + 1].forward_1);
        EXPECT_GE(here.backward_1,
                  r > 0 ? block[r - 1].backward_1 + kind.backward_cells : here.forward_1 + 1);
        EXPECT_GE(here.backward_0,
                  (last ? here.backward_1 : block[r + 1].backward_0) + kind.backward_cells);
      }
    }
  }
}

TEST(VBlocks, HoldNoMoreThanTheirClosedForms) {
  for (const Kind& kind : kKinds) {
    for (int p = 1; p <= 40; ++p) {
      Schedule schedule;
      schedule.placement = Placement::v_shape(p);
      schedule.num_microbatches = 3 * p;
      schedule.ranks.resize(static_cast<std::size_t>(p));
      repeat_block(schedule, kind.block(p), kind.backward_cells == 1);
      EXPECT_LE(testing::highest_peak(squeeze(schedule)), kind.peak(p)) << kind.name << ' ' << p;
      EXPECT_TRUE(validate(schedule).empty()) << kind.name << ' ' << p;
    }
  }
}

}  // namespace
}  // namespace sluice
