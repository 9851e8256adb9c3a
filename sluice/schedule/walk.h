// walk.h - runs a schedule without time, to see which passes can run at all. Used by validate().
#pragma once

#include <cstddef>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// Position of a (stage, microbatch, slice) in flat arrays.
struct UnitIndex {
  int num_stages = 0;
  int num_microbatches = 0;
  int num_slices = 1;

  explicit UnitIndex(const Schedule& schedule)
      : num_stages(schedule.num_stages()),
        num_microbatches(schedule.num_microbatches),
        num_slices(schedule.num_slices) {}

  std::size_t operator()(int stage, int microbatch, int slice) const {
    return (static_cast<std::size_t>(stage) * static_cast<std::size_t>(num_microbatches) +
            static_cast<std::size_t>(microbatch)) *
               static_cast<std::size_t>(num_slices) +
           static_cast<std::size_t>(slice);
  }
  std::size_t operator()(const Pass& pass) const {
    return (*this)(pass.stage, pass.microbatch, pass.slice);
  }
  /// All stages; REQUIRES: the product fits, see fits_in_memory().
  std::size_t size() const { return (*this)(num_stages, 0, 0); }
  /// Whether a flat array is in proportion to the number of passes there are.
  bool fits_in_memory(std::int64_t num_passes) const;
  bool contains(const Pass& pass) const {
    return pass.stage >= 0 && pass.stage < num_stages && pass.microbatch >= 0 &&
           pass.microbatch < num_microbatches && pass.slice >= 0 && pass.slice < num_slices;
  }
};

/// True for F, B, I, W, D and U, whose `stage` is a stage; false for E, G, S and T, where it is a
/// rank.
bool is_stage_pass(PassKind kind);

/// Where every rank stops when each runs its passes in order, as soon as what they need is done.
struct Walk {
  std::vector<int> stop;      // per rank: index of the first pass that never runs, or the end
  std::vector<Pass> missing;  // per rank that stops early: a pass its next one waits for
};

/// Walks `schedule`. A pass outside the schedule's sizes needs nothing and gives nothing.
/// REQUIRES: UnitIndex(schedule).fits_in_memory(), and one list of passes for each rank.
Walk walk(const Schedule& schedule);

}  // namespace sluice
