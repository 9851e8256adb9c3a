#include "sluice/schedule/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/generators.h"

namespace sluice {
namespace {

void check_request(std::string_view name, const ScheduleRequest& request) {
  const auto at_least_one = [&](const char* what, int value) {
    if (value < 1) {
      throw InvalidArgument(fmt::format("{} needs at least 1 {}, not {}: set {} to 1 or more", name,
                                        what, value, what));
    }
  };
  at_least_one("ranks", request.ranks);
  at_least_one("microbatches", request.microbatches);
  at_least_one("slices", request.slices);
  at_least_one("chunks", request.chunks);
  if (request.group < 0) {
    throw InvalidArgument(fmt::format(
        "group {} is negative: set group to 1 or more, or leave it out", request.group));
  }
  // Passes count in 32 bits; three passes for each stage, microbatch and slice at most.
  const double num_passes =
      3.0 * request.ranks * request.chunks * request.microbatches * request.slices;
  if (num_passes > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(fmt::format(
        "{} ranks x {} chunks x {} microbatches x {} slices are more than 2^31 passes: use fewer",
        request.ranks, request.chunks, request.microbatches, request.slices));
  }
}

Schedule cut_into_slices(Schedule schedule, int num_slices) {
  schedule.num_slices = num_slices;
  for (std::vector<Pass>& passes : schedule.ranks) {
    std::vector<Pass> cut;
    cut.reserve(passes.size() * static_cast<std::size_t>(num_slices));
    for (Pass pass : passes) {
      const bool forward = pass.kind == PassKind::kForward || pass.kind == PassKind::kOffload;
      for (int i = 0; i < num_slices; ++i) {
        pass.slice = forward ? i : num_slices - 1 - i;
        cut.push_back(pass);
      }
    }
    passes = std::move(cut);
  }
  return schedule;
}

}  // namespace

const std::vector<ScheduleInfo>& schedule_library() {
  static const std::vector<ScheduleInfo> library = describe_library();
  return library;
}

const ScheduleInfo& find_schedule(std::string_view name) {
  const std::vector<ScheduleInfo>& library = schedule_library();
  const auto found = std::find_if(library.begin(), library.end(),
                                  [&](const ScheduleInfo& info) { return info.name == name; });
  if (found != library.end()) return *found;
  std::vector<std::string_view> names;
  for (const ScheduleInfo& info : library) names.push_back(info.name);
  throw InvalidArgument(
      fmt::format("there is no schedule '{}': choose one of {}", name, fmt::join(names, ", ")));
}

Schedule make_schedule(std::string_view name, const ScheduleRequest& request) {
  const ScheduleInfo& info = find_schedule(name);
  ScheduleRequest complete = request;
  if (complete.chunks == 0) complete.chunks = info.default_chunks;
  check_request(name, complete);
  Schedule schedule = info.generate(complete);
  if (complete.slices > 1 && !info.slices_itself) {
    schedule = cut_into_slices(std::move(schedule), complete.slices);
  }
  return schedule;
}

Schedule empty_schedule(std::string name, Placement placement, const ScheduleRequest& request) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.placement = std::move(placement);
  schedule.num_microbatches = request.microbatches;
  schedule.ranks.resize(static_cast<std::size_t>(request.ranks));
  return schedule;
}

void require_chunks(std::string_view name, const ScheduleRequest& request, int chunks) {
  if (request.chunks == chunks) return;
  throw InvalidArgument(fmt::format(
      "{} has {} per rank, not {}: set chunks to {}, or use interleaved, breadth-first "
      "or gis, which take any number",
      name, chunks == 1 ? "1 stage" : fmt::format("{} stages", chunks), request.chunks, chunks));
}

void require_no_group(std::string_view name, const ScheduleRequest& request) {
  if (request.group == 0) return;
  throw InvalidArgument(fmt::format(
      "{} has no microbatch group, but group is {}: leave group out, or use interleaved or gis",
      name, request.group));
}

}  // namespace sluice
