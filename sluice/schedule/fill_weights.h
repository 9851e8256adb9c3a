// fill_weights.h - puts the W passes of a schedule where its ranks would be idle. Read next:
// best_schedule.h.
#pragma once

#include <cstdint>
#include <optional>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

/// Where a W may run in a gap that is shorter than itself, and so delay what comes after the gap.
enum class SmallGaps {
  kNone,
  kBeforeInputOfChunk0,  // the gap ends with an I of the rank's first stage
  kAll,
};

struct FillRules {
  SmallGaps small_gaps = SmallGaps::kNone;
  /// A small gap is filled only if idling through it would bring the rank's idle time above this
  /// and above that of every other rank so far.
  std::int64_t idle_budget = 0;
};

/// The schedule with its F and I in their order and each rank's W, oldest I first, moved: into gaps
/// that hold a W, into small gaps by `rules`, before a forward that would bring the rank above
/// `max_held` activations (in passes, from F to W), and to the end. This is the greedy rule of the
/// Zero Bubble papers (arXiv 2401.10241, 2405.15362).
/// Returns nothing when some pass can never run, or `max_held` cannot be kept.
/// REQUIRES: split backwards, one slice; `ticks` as for squeeze().
std::optional<Schedule> fill_weights(const Schedule& schedule, const PassTicks& ticks, int max_held,
                                     const FillRules& rules = {});

}  // namespace sluice
