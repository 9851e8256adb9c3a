#include "sluice/schedule/slice_loop.h"

#include <cstdint>
#include <utility>

namespace sluice {
namespace {

void write_rank(Schedule& schedule, int rank, const SliceOrder& order, std::int64_t target) {
  const std::vector<int>& stages = schedule.placement.stages_of(rank);
  std::vector<Pass>& passes = schedule.ranks[static_cast<std::size_t>(rank)];
  const int per_microbatch = order.per_microbatch();
  const std::int64_t total = std::int64_t{per_microbatch} * schedule.num_microbatches;
  passes.reserve(2 * static_cast<std::size_t>(total));
  const auto add = [&](PassKind kind, std::int64_t number) {
    const auto local = static_cast<int>(number % per_microbatch);
    const int k = kind == PassKind::kForward ? local : per_microbatch - 1 - local;
    passes.push_back({.kind = kind,
                      .stage = stages[static_cast<std::size_t>(order.chunk_of(k))],
                      .microbatch = static_cast<std::int32_t>(number / per_microbatch),
                      .slice = order.slice_of(k)});
  };
  std::int64_t forwards = 0;
  std::int64_t backwards = 0;
  while (backwards < total) {
    if (forwards < total && forwards - backwards < target) add(PassKind::kForward, forwards++);
    if (forwards - backwards >= target || forwards == total) add(PassKind::kBackward, backwards++);
  }
}

}  // namespace

Schedule slice_loop(std::string name, const ScheduleRequest& request, const SliceOrder& order,
                    int skew) {
  Schedule schedule =
      empty_schedule(std::move(name), Placement::loop(request.ranks, request.chunks), request);
  schedule.num_slices = request.slices;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const std::int64_t target =
        order.per_microbatch() + std::int64_t{skew} * (request.ranks - 1 - rank);
    write_rank(schedule, rank, order, target);
  }
  return schedule;
}

}  // namespace sluice
