// vocab_plan.h - shards the vocabulary layers of any schedule over its ranks (Vocabulary
// Parallelism, arXiv 2411.05288), with every pass where the simulation ends soonest.
// Read next: vocab_plan.cc, then docs/vocabulary.md.
#pragma once

#include <functional>

#include "sluice/schedule/schedule.h"
#include "sluice/sim/cost_model.h"

namespace sluice {

/// Makes the schedule without vocabulary passes for a number of microbatches.
using MakeSchedule = std::function<Schedule(int num_microbatches)>;

/// The schedule of `make` with the passes E, G, S and T of `form` (not kLast): the turn at the last
/// stage is stretched by at most k units (k = 1 for parallel-2, 2 for parallel-1; a unit is a
/// slice, or a microbatch without slices), and S and T go where passes end. Several placements,
/// which wait for the hidden states for shorter or longer, are simulated with `cost`; the fastest
/// is returned, and of equals the one that holds fewer activations. A rank holds at most k units
/// more than in the plain schedule, and has at most k + 1 units between S and T.
/// REQUIRES: `cost` fits the schedules of `make`, with S, T, E, G and collectives in it.
Schedule plan_vocabulary(const MakeSchedule& make, int num_microbatches, VocabForm form,
                         const CostModel& cost);

}  // namespace sluice
