// grouped.h - the microbatch group table that interleaved, breadth-first and gis are made of.
#pragma once

#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// Forward k of every rank is entry k of a table: group after group, and within a group chunk after
/// chunk (Megatron's group table). Backward k is the same microbatch in the mirrored chunk. A rank
/// begins with `lead` forwards, then alternates one backward, one forward.
///
/// A group may have more slots than microbatches: a slot without a microbatch keeps its place in
/// the count and runs nothing. That is what keeps a short last group, or groups smaller than the
/// number of ranks, free of deadlock: the order is that of a full table with passes left out.
struct GroupedOrder {
  int group = 1;          // microbatches of a group
  int slots = 1;          // places of a group, at least `group`
  bool split = false;     // backwards as I, W instead of B
  std::vector<int> lead;  // per rank: slots filled with forwards before the first backward
};

/// Fills the passes of `schedule`, whose placement is a loop.
void fill_grouped(Schedule& schedule, const GroupedOrder& order);

}  // namespace sluice
