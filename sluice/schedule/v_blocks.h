// v_blocks.h - building blocks of schedules on a V: one microbatch on a grid of cells. Read next:
// v_blocks.cc.
#pragma once

#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// Where the passes of the first microbatch start on one rank of a V, in cells: a cell is the time
/// of one pass of one stage. Chunk 0 is the way down the V, chunk 1 the way back up.
struct BlockRow {
  int forward_0 = 0;
  int forward_1 = 0;
  int backward_1 = 0;  // I, or B where the backward is not split
  int backward_0 = 0;

  friend bool operator==(const BlockRow&, const BlockRow&) = default;
};

/// A block, repeated every 6 cells, microbatch by microbatch (arXiv 2405.15362).
/// Invariants: passes of a rank, a B being two cells long, never overlap modulo 6; what a pass
/// needs ends before it starts.
using Block = std::vector<BlockRow>;  // index: rank

Block v_half_block(int num_ranks);
Block v_min_block(int num_ranks);

/// The block with the shortest way back, and so the fewest activations, of those whose forwards go
/// straight down and up the V. The backward is not split.
Block one_f_one_b_v_block(int num_ranks);

/// Most activations of a rank, in passes: the closed forms of the blocks above.
int v_half_peak(int num_ranks);
int v_min_peak(int num_ranks);
int one_f_one_b_v_peak(int num_ranks);

/// Adds `num_microbatches` repetitions of the block to the ranks of `schedule` in the order of
/// their cells. With `split` each W takes the first free cell after its I; without, backwards are
/// B.
/// REQUIRES: a V placement with the block's ranks.
void repeat_block(Schedule& schedule, const Block& block, bool split);

}  // namespace sluice
