// Interleaved 1F1B (arXiv 2104.04473) with any microbatch group, and breadth-first
// (arXiv 2211.05953): the same table with all microbatches in one group and all forwards first.
#include <algorithm>

#include "sluice/schedule/generators.h"
#include "sluice/schedule/grouped.h"

namespace sluice {

Schedule make_interleaved(const ScheduleRequest& request) {
  const int p = request.ranks;
  const int v = request.chunks;
  const int group =
      std::min(request.group == 0 ? p : request.group, std::max(p, request.microbatches));
  // A microbatch is back on a rank for its next chunk p slots later at the earliest, so a smaller
  // group leaves places free.
  GroupedOrder order{.group = group, .slots = std::max(group, p), .split = false, .lead = {}};
  for (int rank = 0; rank < p; ++rank) {
    // The first forward of the steady [F, B] pairs is the + 1. With one chunk a lead of 2 per rank
    // would only cost memory: plain 1F1B has the same bubble.
    const int lead_per_rank = v == 1 ? 1 : 2;
    order.lead.push_back((v - 1) * order.slots + lead_per_rank * (p - 1 - rank) + 1);
  }
  Schedule schedule = empty_schedule("interleaved", Placement::loop(p, v), request);
  fill_grouped(schedule, order);
  return schedule;
}

Schedule make_breadth_first(const ScheduleRequest& request) {
  require_no_group("breadth-first", request);
  const int p = request.ranks;
  const int v = request.chunks;
  const int m = request.microbatches;
  GroupedOrder order{.group = m, .slots = m, .split = false, .lead = {}};
  order.lead.assign(static_cast<std::size_t>(p), m * v);
  Schedule schedule = empty_schedule("breadth-first", Placement::loop(p, v), request);
  fill_grouped(schedule, order);
  return schedule;
}

}  // namespace sluice
