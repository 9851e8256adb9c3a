// squeeze.h - the earliest times of a schedule's passes. Read next: reorder.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

/// What squeeze() finds. Times in the ticks of the caller, 0 at the start of the step.
struct SqueezedTimes {
  std::vector<std::vector<std::int64_t>> start;  // start[r][i]: when ranks[r][i] starts
  std::int64_t makespan = 0;                     // last end over all ranks
  std::int64_t max_span = 0;  // longest own time of a rank: its first start to its last end
  std::vector<int> peak;      // per rank: most activations held, in passes: +1 at F, -1 at W or B
  bool is_complete = false;   // false: passes are left that can never start; the rest is undefined
};

/// Starts every pass as early as its rank's order and its dependencies allow: F after F of the
/// stage before, B or I after its own F and the backward of the stage after, W after its I. A
/// message between two ranks adds `ticks.message` and occupies neither. A B takes the ticks of I
/// and of W; with slices every slice takes the full ticks. Linear in the number of passes.
/// This is a sketch of simulate() for generators that compare orders: no lanes, links or bytes.
/// REQUIRES: only F, B, I and W passes, within the schedule's sizes and on their stage's rank.
/// Throws: InvalidArgument unless each vector of `ticks` is empty or has one entry >= 0 per stage.
SqueezedTimes squeeze(const Schedule& schedule, const PassTicks& ticks = {});

/// Ticks of a pass; 1 where `ticks` is empty, and for a B the sum of I and W.
std::int64_t ticks_of(const PassTicks& ticks, PassKind kind, int stage);

/// Throws: InvalidArgument unless squeeze() can use `ticks` for `num_stages` stages.
void check_ticks(const PassTicks& ticks, int num_stages);

}  // namespace sluice
