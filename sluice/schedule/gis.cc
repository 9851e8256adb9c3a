// GIS and GIS-H (PipeOffload, arXiv 2503.01328, section on generalised interleaving): interleaved
// with the backward split in place and a warm-up that is p - 1 - rank shorter.
#include <fmt/format.h>

#include <string>

#include "sluice/common/errors.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/grouped.h"

namespace sluice {
namespace {

int half_group(const ScheduleRequest& request) { return (request.ranks + 1) / 2; }

Schedule make_with_group(std::string name, const ScheduleRequest& request, int group) {
  const int p = request.ranks;
  const int v = request.chunks;
  GroupedOrder order{.group = group, .slots = group, .split = true, .lead = {}};
  // In the paper's timetable forward slot k starts at 3k + rank and backward slot k at
  // 3k + 3g(v-1) + rank + 3(p-1-rank) + 1, in thirds of a microbatch's time on a chunk.
  for (int rank = 0; rank < p; ++rank) order.lead.push_back(group * (v - 1) + p - rank);
  Schedule schedule = empty_schedule(std::move(name), Placement::loop(p, v), request);
  fill_grouped(schedule, order);
  return schedule;
}

}  // namespace

Schedule make_gis(const ScheduleRequest& request) {
  const int group = request.group == 0 ? request.ranks : request.group;
  if (group < half_group(request) || group > request.ranks) {
    throw InvalidArgument(
        fmt::format("gis with {} ranks takes a group from {} (half the ranks, least memory) to {} "
                    "(least bubble), not {}: change group",
                    request.ranks, half_group(request), request.ranks, group));
  }
  return make_with_group("gis", request, group);
}

Schedule make_gis_h(const ScheduleRequest& request) {
  const int group = half_group(request);
  if (request.group != 0 && request.group != group) {
    throw InvalidArgument(
        fmt::format("gis-h with {} ranks has group {}, not {}: leave group out, or use gis",
                    request.ranks, group, request.group));
  }
  return make_with_group("gis-h", request, group);
}

}  // namespace sluice
