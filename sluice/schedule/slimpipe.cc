// SlimPipe (arXiv 2504.14519): equal slices, n >= p of them, in cycles of g through the chunks of a
// rank. Rank r keeps n v + 2 (p-1-r) slice-chunks in flight: the skew of two between neighbours
// puts all ranks into forwards together and into backwards together, so that they can exchange
// attention, and hides the messages between stages.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "sluice/common/errors.h"
#include "sluice/schedule/slice_loop.h"

namespace sluice {
namespace {

// The divisors of `slices` that a cycle can have: all that keep every rank at work.
std::vector<int> cycles(int slices, int ranks) {
  std::vector<int> fitting;
  for (int cycle = ranks; cycle <= slices; ++cycle) {
    if (slices % cycle == 0) fitting.push_back(cycle);
  }
  return fitting;
}

void check_slices(const ScheduleRequest& request) {
  if (request.slices >= request.ranks) return;
  throw InvalidArgument(fmt::format(
      "slimpipe needs at least as many slices as ranks, but slices is {} and ranks is {}: set "
      "slices to {} or {} (multiples of ranks level best), or ranks to {} or less",
      request.slices, request.ranks, request.ranks, 2 * request.ranks, request.slices));
}

}  // namespace

Schedule make_slimpipe(const ScheduleRequest& request) {
  check_slices(request);
  const std::vector<int> fitting = cycles(request.slices, request.ranks);
  const int cycle = request.group == 0 ? fitting.front() : request.group;
  if (cycle < request.ranks || request.slices % cycle != 0) {
    throw InvalidArgument(fmt::format(
        "slimpipe walks its slices in cycles of group = {}, which must divide the {} slices and be "
        "at least the {} ranks: set group to one of {}, or leave it out",
        cycle, request.slices, request.ranks, fmt::join(fitting, ", ")));
  }
  const SliceOrder order{.slices = request.slices, .chunks = request.chunks, .cycle = cycle};
  return slice_loop("slimpipe", request, order, /*skew=*/2);
}

}  // namespace sluice
