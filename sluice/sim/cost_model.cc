#include "sluice/sim/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "sluice/common/errors.h"
#include "sluice/sim/ticks.h"

namespace sluice {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// One entry per rank, in millionths of the unit.
std::vector<std::int64_t> per_rank(std::span<const double> times, int num_ranks,
                                   std::string_view name) {
  if (times.size() != 1 && times.size() != index(num_ranks)) {
    throw InvalidArgument(
        fmt::format("times {} have {} entries; give one, or one for each of the {} "
                    "ranks",
                    name, times.size(), num_ranks));
  }
  const std::string label = fmt::format("time {}", name);
  std::vector<std::int64_t> ticks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ticks.push_back(to_micro_units(times[times.size() == 1 ? 0 : index(rank)], label));
  }
  return ticks;
}

}  // namespace

PassTicks to_pass_ticks(const CostModel& cost) {
  const auto whole = [&](PassKind kind) {
    std::vector<std::int64_t> stages(index(cost.num_stages), 0);
    for (int stage = 0; stage < cost.num_stages; ++stage) {
      for (int slice = 0; slice < cost.num_slices; ++slice) {
        stages[index(stage)] += cost.duration({.kind = kind, .stage = stage, .slice = slice});
      }
    }
    return stages;
  };
  PassTicks ticks{.forward = whole(PassKind::kForward),
                  .backward_input = whole(PassKind::kBackwardInput),
                  .backward_weight = whole(PassKind::kBackwardWeight),
                  .message = cost.message_ticks};
  for (const std::int64_t message : cost.message_ticks_of_rank) {
    ticks.message = std::max(ticks.message, message);
  }
  if (cost.ticks[index(static_cast<int>(PassKind::kBackwardInput))].empty()) {
    ticks.backward_input = whole(PassKind::kBackward);
  }
  return ticks;
}

CostModel cost_from_rank_times(const RankTimes& times, const Placement& placement, int num_slices) {
  SLUICE_CHECK(num_slices >= 1, "{} slices", num_slices);
  const int num_ranks = placement.num_ranks();
  const std::int64_t chunks = common_chunks(placement);
  CostModel cost;
  cost.num_stages = placement.num_stages();
  cost.num_slices = num_slices;
  cost.unit_per_tick = 1.0 / (kTicksPerUnit * static_cast<double>(chunks * num_slices));
  cost.message_ticks = to_micro_units(times.message, "time message") * chunks * num_slices;
  if (!times.message_of_rank.empty()) {
    cost.message_ticks_of_rank = per_rank(times.message_of_rank, num_ranks, "message");
    for (std::int64_t& ticks : cost.message_ticks_of_rank) ticks *= chunks * num_slices;
  }

  // A tick is a (chunks * slices)-th of a millionth, so a slice of one of a rank's c stages takes
  // time / (c * slices) = time * (chunks / c) ticks: a whole number.
  const auto fill = [&](PassKind kind, const std::vector<std::int64_t>& of_rank) {
    std::vector<std::int64_t>& row = cost.ticks[static_cast<std::size_t>(kind)];
    row.clear();
    for (int stage = 0; stage < placement.num_stages(); ++stage) {
      row.insert(row.end(), index(num_slices),
                 stage_ticks(placement, stage, chunks, of_rank[index(placement.rank_of(stage))]));
    }
  };
  fill(PassKind::kForward, per_rank(times.forward, num_ranks, "forward"));
  if (!times.backward.empty()) {
    fill(PassKind::kBackward, per_rank(times.backward, num_ranks, "backward"));
    return cost;
  }
  std::vector<std::int64_t> input = per_rank(times.backward_input, num_ranks, "backward_input");
  const std::vector<std::int64_t> weight =
      per_rank(times.backward_weight, num_ranks, "backward_weight");
  fill(PassKind::kBackwardInput, input);
  fill(PassKind::kBackwardWeight, weight);
  for (int rank = 0; rank < num_ranks; ++rank) input[index(rank)] += weight[index(rank)];
  fill(PassKind::kBackward, input);
  return cost;
}

}  // namespace sluice
