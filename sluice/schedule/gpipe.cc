// GPipe (arXiv 1811.06965): all forwards, then all backwards.
#include "sluice/schedule/generators.h"

namespace sluice {

Schedule make_gpipe(const ScheduleRequest& request) {
  require_chunks("gpipe", request, 1);
  require_no_group("gpipe", request);
  Schedule schedule = empty_schedule("gpipe", Placement::loop(request.ranks, 1), request);
  for (int rank = 0; rank < request.ranks; ++rank) {
    std::vector<Pass>& passes = schedule.ranks[static_cast<std::size_t>(rank)];
    passes.reserve(2 * static_cast<std::size_t>(request.microbatches));
    for (const PassKind kind : {PassKind::kForward, PassKind::kBackward}) {
      for (int microbatch = 0; microbatch < request.microbatches; ++microbatch) {
        passes.push_back({.kind = kind, .stage = rank, .microbatch = microbatch});
      }
    }
  }
  return schedule;
}

}  // namespace sluice
