// reorder.h - moves passes of a schedule into earlier idle time while memory allows. Read next:
// fill_weights.h.
#pragma once

#include "sluice/schedule/registry.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

/// The schedule with passes moved into idle time that comes before them on their rank and is long
/// enough, as long as no rank holds more than `max_held` activations (in passes, from F to W or B)
/// and passes of the same kind and stage keep their order. Nothing ever starts later, so the
/// squeezed time never grows. Repeats while the makespan falls, but only a few times. This closes
/// up the warm-up and cool-down of the V family's repeated blocks (arXiv 2405.15362).
/// REQUIRES: a schedule that runs and keeps within `max_held`, one slice; `ticks` as for squeeze().
Schedule reorder(const Schedule& schedule, const PassTicks& ticks, int max_held);

}  // namespace sluice
