// Seq1F1B (arXiv 2406.03488): 1F1B on slices, microbatches first in, first out, slices of a
// microbatch last in, first out. Rank r keeps n + p - 1 - r slices in flight.
#include "sluice/schedule/slice_loop.h"

namespace sluice {

Schedule make_seq1f1b(const ScheduleRequest& request) {
  require_chunks("seq1f1b", request, 1);
  require_no_group("seq1f1b", request);
  const SliceOrder order{.slices = request.slices, .chunks = 1, .cycle = request.slices};
  return slice_loop("seq1f1b", request, order, /*skew=*/1);
}

}  // namespace sluice
