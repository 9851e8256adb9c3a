#include "sluice/schedule/v_blocks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr int kPeriod = 6;  // cells of a microbatch on a rank: two chunks of three passes

/// The smallest number >= `at_least` that leads from cell `from` to a cell with residue `to`.
int gap_to(int from, int to, int at_least) {
  const int first = from + at_least;
  return at_least + ((to - first) % kPeriod + kPeriod) % kPeriod;
}

/// One pass of a block on the grid.
struct Cell {
  int at = 0;
  Pass pass;

  friend auto operator<=>(const Cell&, const Cell&) = default;
};

/// The passes of the first microbatch on one rank, each W in the first cell free of other
/// microbatches after its I.
std::vector<Cell> cells_of(const BlockRow& row, int stage_0, int stage_1, bool split) {
  std::array<bool, kPeriod> taken{};
  std::vector<Cell> cells;
  const auto put = [&](int at, PassKind kind, int stage, int length) {
    for (int i = at; i < at + length; ++i) {
      bool& is_taken = taken[static_cast<std::size_t>(i % kPeriod)];
      SLUICE_CHECK(!is_taken, "cell {} of stage {} is taken", i, stage);
      is_taken = true;
    }
    cells.push_back({.at = at, .pass = {.kind = kind, .stage = stage}});
  };
  put(row.forward_0, PassKind::kForward, stage_0, 1);
  put(row.forward_1, PassKind::kForward, stage_1, 1);
  const PassKind backward = split ? PassKind::kBackwardInput : PassKind::kBackward;
  put(row.backward_1, backward, stage_1, split ? 1 : 2);
  put(row.backward_0, backward, stage_0, split ? 1 : 2);
  if (!split) return cells;
  for (const auto& [start, stage] :
       {std::pair(row.backward_1, stage_1), std::pair(row.backward_0, stage_0)}) {
    int at = start + 1;
    while (taken[static_cast<std::size_t>(at % kPeriod)]) ++at;
    put(at, PassKind::kBackwardWeight, stage, 1);
  }
  return cells;
}

using Residues = std::array<int, 2>;

/// The two residues at which a rank of 1F1B-V can start a B of two cells when its forwards take one
/// cell each. The four cells that the forwards leave are two pairs.
Residues backward_residues(int forward_0, int forward_1) {
  const int distance = ((forward_1 - forward_0) % kPeriod + kPeriod) % kPeriod;
  if (distance == 1) return {(forward_0 + 2) % kPeriod, (forward_0 + 4) % kPeriod};
  if (distance == 3) return {(forward_0 + 1) % kPeriod, (forward_0 + 4) % kPeriod};
  return {(forward_0 + 1) % kPeriod, (forward_0 + 3) % kPeriod};
}

/// Which of its residues each rank gives to chunk 1, chunk 0 taking the other, such that the
/// gradient is back soonest after the last forward at `last_forward`. Its way is a sum over
/// neighbours: dynamic programming over the ranks.
std::vector<std::size_t> shortest_way_back(const std::vector<Residues>& residues,
                                           int last_forward) {
  struct Choice {
    int length = 0;  // of the way on the ranks up to this one, in cells
    std::size_t before = 0;
  };
  std::vector<std::array<Choice, 2>> best(residues.size());
  for (std::size_t c = 0; c < 2; ++c) {
    best[0][c].length = gap_to(last_forward, residues[0][c], 1);
  }
  for (std::size_t r = 1; r < residues.size(); ++r) {
    for (std::size_t c = 0; c < 2; ++c) {
      best[r][c].length = std::numeric_limits<int>::max();
      for (std::size_t d = 0; d < 2; ++d) {
        const int length = best[r - 1][d].length + gap_to(residues[r - 1][d], residues[r][c], 2) +
                           gap_to(residues[r][1 - c], residues[r - 1][1 - d], 2);
        if (length < best[r][c].length) best[r][c] = {.length = length, .before = d};
      }
    }
  }
  const auto whole = [&](std::size_t c) {
    return best.back()[c].length + gap_to(residues.back()[c], residues.back()[1 - c], 2);
  };
  std::vector<std::size_t> choice(residues.size());
  choice.back() = whole(1) < whole(0) ? 1 : 0;
  for (std::size_t r = residues.size() - 1; r > 0; --r) choice[r - 1] = best[r][choice[r]].before;
  return choice;
}

}  // namespace

Block v_half_block(int num_ranks) {
  const int p = num_ranks;
  const int e = p % 2 == 0 ? 3 : 0;
  Block block;
  for (int r = 0; r < p; ++r) {
    block.push_back({.forward_0 = 2 * r,
                     .forward_1 = 3 * p - 2 - r,
                     .backward_1 = 3 * p + e - 1 + 2 * r,
                     .backward_0 = 6 * p + e - 2 - r});
  }
  return block;
}

Block v_min_block(int num_ranks) {
  const int p = num_ranks;
  const int e = p % 3 == 0 ? 2 : 0;
  Block block;
  for (int r = 0; r < p; ++r) {
    block.push_back({.forward_0 = r,
                     .forward_1 = 2 * p - 1 - r,
                     .backward_1 = 2 * p + e + r,
                     .backward_0 = 4 * p + e - 1 - r});
  }
  return block;
}

Block one_f_one_b_v_block(int num_ranks) {
  Block block;
  std::vector<Residues> residues;
  for (int r = 0; r < num_ranks; ++r) {
    block.push_back({.forward_0 = r, .forward_1 = 2 * num_ranks - 1 - r});
    residues.push_back(backward_residues(block.back().forward_0, block.back().forward_1));
  }
  const std::vector<std::size_t> choice = shortest_way_back(residues, block[0].forward_1);
  int cell = block[0].forward_1;
  for (std::size_t r = 0; r < residues.size(); ++r) {
    cell += gap_to(cell, residues[r][choice[r]], r == 0 ? 1 : 2);
    block[r].backward_1 = cell;
  }
  for (std::size_t r = residues.size(); r-- > 0;) {
    cell += gap_to(cell, residues[r][1 - choice[r]], 2);
    block[r].backward_0 = cell;
  }
  return block;
}

int v_half_peak(int num_ranks) { return 2 * ((num_ranks + 2) / 2); }
int v_min_peak(int num_ranks) { return 2 * ((num_ranks + 4) / 3); }
int one_f_one_b_v_peak(int num_ranks) { return 2 * ((2 * num_ranks + 3) / 3); }

void repeat_block(Schedule& schedule, const Block& block, bool split) {
  const int p = schedule.num_ranks();
  for (int rank = 0; rank < p; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::vector<Cell> first = cells_of(block[r], rank, 2 * p - 1 - rank, split);
    std::vector<Cell> all;
    all.reserve(first.size() * static_cast<std::size_t>(schedule.num_microbatches));
    for (int microbatch = 0; microbatch < schedule.num_microbatches; ++microbatch) {
      for (Cell cell : first) {
        cell.at += kPeriod * microbatch;
        cell.pass.microbatch = microbatch;
        all.push_back(cell);
      }
    }
    std::sort(all.begin(), all.end());
    for (const Cell& cell : all) schedule.ranks[r].push_back(cell.pass);
  }
}

}  // namespace sluice
