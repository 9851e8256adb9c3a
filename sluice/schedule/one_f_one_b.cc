// 1F1B (PipeDream-Flush, DAPPLE; arXiv 2006.09503): after a warm-up, one forward, one backward.
#include <algorithm>

#include "sluice/schedule/generators.h"

namespace sluice {

Schedule make_1f1b(const ScheduleRequest& request) {
  require_chunks("1f1b", request, 1);
  require_no_group("1f1b", request);
  Schedule schedule = empty_schedule("1f1b", Placement::loop(request.ranks, 1), request);
  const int num_microbatches = request.microbatches;
  for (int rank = 0; rank < request.ranks; ++rank) {
    std::vector<Pass>& passes = schedule.ranks[static_cast<std::size_t>(rank)];
    passes.reserve(2 * static_cast<std::size_t>(num_microbatches));
    const int warm_up = std::min(request.ranks - 1 - rank, num_microbatches);
    for (int step = 0; step < num_microbatches + warm_up; ++step) {
      if (step < num_microbatches) {
        passes.push_back({.kind = PassKind::kForward, .stage = rank, .microbatch = step});
      }
      if (step >= warm_up) {
        passes.push_back(
            {.kind = PassKind::kBackward, .stage = rank, .microbatch = step - warm_up});
      }
    }
  }
  return schedule;
}

}  // namespace sluice
