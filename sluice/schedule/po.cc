// PO (PipeOffload, arXiv 2503.01328): the building block of gis-h, repeated uniformly instead of in
// groups, so that chunks of low index live longest and do not peak together.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/squeeze.h"

namespace sluice {
namespace {

// The smallest distance of neighbouring chunks on a rank, in microbatches: half of the ranks, more
// when forwards or backwards through all ranks take longer than that many rounds.
int chunk_distance(const ScheduleRequest& request) {
  const int p = request.ranks;
  std::int64_t round = 1;
  std::int64_t longest = 0;
  for (int chunk = 0; chunk < request.chunks; ++chunk) {
    std::int64_t forward = 0;
    std::int64_t input = 0;
    for (int stage = chunk * p; stage < (chunk + 1) * p; ++stage) {
      const std::int64_t f = ticks_of(request.ticks, PassKind::kForward, stage);
      const std::int64_t b = ticks_of(request.ticks, PassKind::kBackward, stage);
      forward += f;
      input += ticks_of(request.ticks, PassKind::kBackwardInput, stage);
      round = std::max(round, f + b);
    }
    longest = std::max({longest, forward, input});
  }
  const auto needed = static_cast<int>(std::min<std::int64_t>(p, (longest + round - 1) / round));
  return std::max((p + 1) / 2, needed);
}

Schedule make_with_offload(std::string name, const ScheduleRequest& request,
                           const std::string& amount) {
  require_no_group(name, request);
  Schedule schedule = make_po(request);
  schedule.name = std::move(name);
  // Finer ticks, so that half a percent of a pass is a whole number.
  constexpr std::int64_t kFiner = 200;
  PassTicks ticks;
  OffloadCosts costs{.message = request.ticks.message * kFiner};
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    ticks.forward.push_back(kFiner * ticks_of(request.ticks, PassKind::kForward, stage));
    ticks.backward_input.push_back(kFiner *
                                   ticks_of(request.ticks, PassKind::kBackwardInput, stage));
    ticks.backward_weight.push_back(kFiner *
                                    ticks_of(request.ticks, PassKind::kBackwardWeight, stage));
    costs.out.push_back(
        (ticks.forward.back() + ticks.backward_input.back() + ticks.backward_weight.back()) / 200 *
        request.offload_ratio_percent);
  }
  costs.in = costs.out;
  ticks.message = costs.message;
  const SqueezedTimes squeezed = squeeze(schedule, ticks);
  SLUICE_CHECK(squeezed.is_complete, "{} has a deadlock", schedule.name);
  PassTimetable times(schedule.ranks.size());
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Pass& pass = schedule.ranks[rank][i];
      const std::int64_t begin = squeezed.start[rank][i];
      times[rank].push_back({begin, begin + ticks_of(ticks, pass.kind, pass.stage)});
    }
  }
  return plan_offload(schedule, times, costs, parse_offload("offload", amount, schedule.placement))
      .schedule;
}

}  // namespace

Schedule make_po_h(const ScheduleRequest& request) {
  return make_with_offload("po-h", request, "half");
}

Schedule make_po_f(const ScheduleRequest& request) {
  return make_with_offload("po-f", request, "full");
}

Schedule make_po(const ScheduleRequest& request) {
  require_no_group("po", request);
  const int p = request.ranks;
  const int v = request.chunks;
  check_ticks(request.ticks, p * v);
  const int distance = chunk_distance(request);
  const int chunks_per_turn = v / std::gcd(v, distance);
  // In thirds of a microbatch's time on a chunk: F at residue `rank`, I and W at the two next ones.
  const auto offset = [&](int chunk) {
    return 3 * distance * chunk + 3 * (chunk / chunks_per_turn);
  };
  Schedule schedule = empty_schedule("po", Placement::loop(p, v), request);
  for (int rank = 0; rank < p; ++rank) {
    std::vector<std::pair<std::int64_t, Pass>> timetable;
    const std::int64_t first_backward = offset(v - 1) + rank + 3 * (p - 1 - rank) + 1;
    for (int microbatch = 0; microbatch < request.microbatches; ++microbatch) {
      const std::int64_t begin = std::int64_t{3} * v * microbatch;
      for (int chunk = 0; chunk < v; ++chunk) {
        const std::int64_t forward = begin + offset(chunk) + rank;
        const std::int64_t backward = begin + first_backward + offset(v - 1 - chunk);
        const int stage = chunk * p + rank;
        timetable.push_back({forward, {PassKind::kForward, stage, microbatch, 0}});
        timetable.push_back({backward, {PassKind::kBackwardInput, stage, microbatch, 0}});
        timetable.push_back({backward + 1, {PassKind::kBackwardWeight, stage, microbatch, 0}});
      }
    }
    std::sort(timetable.begin(), timetable.end());
    for (const auto& [time, pass] : timetable) {
      schedule.ranks[static_cast<std::size_t>(rank)].push_back(pass);
    }
  }
  return schedule;
}

}  // namespace sluice
