// vocab_passes.h - turns a schedule into one whose vocabulary layers are sharded over all ranks
// (Vocabulary Parallelism, arXiv 2411.05288): room at the turn, then E, G, S and T. Pure list work;
// sim/vocab_plan.h chooses the times. Read next: sim/vocab_plan.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// The schedule of `num_microbatches` in which every backward (B, I, W, U) takes the place that the
/// backward `num_units` later had in `longer`; a unit is a slice, or a microbatch without slices.
/// Between the last layer's forward of a unit and its backward there are so many more intervals,
/// and every rank holds so many more units (section 4 of the paper: the stretched block).
/// The order stays valid: nothing comes earlier than it did.
/// REQUIRES: `longer` has ceil(num_units / num_slices) microbatches more than `num_microbatches`.
Schedule delay_backwards(const Schedule& longer, int num_units, int num_microbatches);

/// A pass of every rank, at one time for all.
struct TimedVocabPass {
  std::int64_t time = 0;
  PassKind kind = PassKind::kVocabForward;
  std::int32_t microbatch = 0;
  std::int32_t slice = 0;
};

/// `base` with the passes of `vocabulary` on every rank, in the order given, each before the first
/// pass of the rank that starts at its time or later. All ranks so have one order of vocabulary
/// passes. `start[r][i]` is when ranks[r][i] starts.
/// REQUIRES: `vocabulary` is sorted by time.
Schedule insert_vocab_passes(const Schedule& base, VocabForm form,
                             const std::vector<std::vector<std::int64_t>>& start,
                             const std::vector<TimedVocabPass>& vocabulary);

}  // namespace sluice
