// rows.h - a Timeline as the rows that pictures draw. Read next: grid.h, svg.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/trace/timeline.h"

namespace sluice {

/// One rectangle of a picture: a pass or the optimizer on the compute lane of a rank.
struct Cell {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool is_optimizer = false;
  int chunk = 0;  // position of the pass's stage among the stages seen on the rank
  Pass pass;
};

/// The compute lanes of a timeline.
struct Rows {
  std::vector<std::vector<Cell>> ranks;  // in time order
  std::int64_t begin = 0;                // of the first cell
  std::int64_t end = 0;                  // of the last cell
  int num_chunks = 1;                    // the most stages seen on one rank
  int num_slices = 1;
  std::int64_t typical_ticks = 1;  // nine in ten passes last at least this long

  std::int64_t length() const { return end - begin; }
};

/// Collects the cells that have a length.
Rows picture_rows(const Timeline& timeline);

}  // namespace sluice
