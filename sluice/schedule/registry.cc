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

std::vector<ScheduleInfo> build_library() {
  std::vector<ScheduleInfo> library;
  library.push_back({.name = "gpipe",
                     .summary = "All forwards, then all backwards: the simplest order",
                     .source = "GPipe, arXiv 1811.06965",
                     .bubble_formula = "(p-1)(F+B)",
                     .memory_formula = "m/p",
                     .rules = "any p, any m; one stage per rank",
                     .default_chunks = 1,
                     .generate = make_gpipe});
  library.push_back({.name = "1f1b",
                     .summary = "GPipe's bubble with the memory of at most p microbatches",
                     .source = "PipeDream-Flush, arXiv 2006.09503; DAPPLE, arXiv 2007.01045",
                     .bubble_formula = "(p-1)(F+B)",
                     .memory_formula = "min(m, p)/p",
                     .rules = "any p, any m; one stage per rank",
                     .default_chunks = 1,
                     .generate = make_1f1b});
  library.push_back({.name = "interleaved",
                     .summary = "1F1B over several chunks per rank: less bubble, more messages",
                     .source = "Megatron-LM, arXiv 2104.04473",
                     .bubble_formula = "(p-1)(F+B)/v",
                     .memory_formula = "1 + (p-1)/(pv)",
                     .rules = "any p, m, v; group p by default, any other is allowed",
                     .default_chunks = 2,
                     .generate = make_interleaved});
  library.push_back({.name = "breadth-first",
                     .summary = "GPipe over several chunks: one visit of each chunk per direction",
                     .source = "arXiv 2211.05953",
                     .bubble_formula = "(p-1)(F+B)/v",
                     .memory_formula = "m/p",
                     .rules = "any p, m, v",
                     .default_chunks = 2,
                     .generate = make_breadth_first});
  library.push_back({.name = "dualpipe-v",
                     .summary = "Forwards of one chunk beside backwards of the other",
                     .source = "DeepSeek-V3, arXiv 2412.19437",
                     .bubble_formula = "(p-1)(F+I-W)/2",
                     .memory_formula = "1 + 1/(2p)",
                     .rules = "any p, any m; two chunks per rank; made for m >= 2p",
                     .default_chunks = 2,
                     .generate = make_dualpipe_v});
  library.push_back({.name = "gis",
                     .summary = "Interleaved with a split backward: less memory and less bubble",
                     .source = "PipeOffload, arXiv 2503.01328",
                     .bubble_formula = "(p-1)(F+I)/v + (p-g)(v-1)(F+I-W)/v",
                     .memory_formula = "(g(v-1)+p)/(vp)",
                     .rules = "any p, m, v; group from ceil(p/2) to p, p by default",
                     .default_chunks = 2,
                     .generate = make_gis});
  library.push_back({.name = "gis-h",
                     .summary = "GIS with groups of half the ranks: about half the memory",
                     .source = "PipeOffload, arXiv 2503.01328",
                     .bubble_formula = "(p-1)(F+I)/v + (p-g)(v-1)(F+I-W)/v with g = ceil(p/2)",
                     .memory_formula = "(g(v-1)+p)/(vp) with g = ceil(p/2)",
                     .rules = "any p, m, v",
                     .default_chunks = 2,
                     .generate = make_gis_h});
  return library;
}

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
      const bool forward = pass.kind == PassKind::kForward;
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
  static const std::vector<ScheduleInfo> library = build_library();
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
