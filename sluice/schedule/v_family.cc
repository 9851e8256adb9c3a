// V-Half, V-Min and 1F1B-V (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362): a
// block of one microbatch is repeated and squeezed, then warm-up and cool-down are closed up.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "sluice/schedule/best_schedule.h"
#include "sluice/schedule/fill_weights.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/reorder.h"
#include "sluice/schedule/squeeze.h"
#include "sluice/schedule/v_blocks.h"

namespace sluice {
namespace {

Schedule repeated(std::string name, const ScheduleRequest& request, const Block& block,
                  bool split) {
  require_chunks(name, request, 2);
  require_no_group(name, request);
  check_ticks(request.ticks, 2 * request.ranks);
  Schedule schedule = empty_schedule(std::move(name), Placement::v_shape(request.ranks), request);
  repeat_block(schedule, block, split);
  return schedule;
}

// The paper's two rounds, with W in place and with W that fill gaps, as candidates: which is best
// depends on the pass times.
Schedule close_up(const Schedule& block, const PassTicks& ticks, int max_held) {
  BestSchedule best(ticks, BestSchedule::Goal::kMakespan);
  best.offer(block);
  const auto offer_filled = [&](const Schedule& order, SmallGaps gaps) {
    std::optional<Schedule> filled =
        fill_weights(order, ticks, max_held, {.small_gaps = gaps, .idle_budget = 0});
    if (filled.has_value()) best.offer(*filled);
    return filled;
  };
  Schedule moved = reorder(block, ticks, max_held);
  for (int round = 0; round < 2; ++round) {
    best.offer(moved);
    std::optional<Schedule> filled = offer_filled(moved, SmallGaps::kNone);
    if (block.num_passes() <= kMostPassesToSearch) {
      offer_filled(moved, SmallGaps::kBeforeInputOfChunk0);
      offer_filled(moved, SmallGaps::kAll);
    }
    if (!filled.has_value()) break;
    if (round == 0) moved = reorder(*filled, ticks, max_held);
  }
  return best.take();
}

}  // namespace

Schedule make_v_half(const ScheduleRequest& request) {
  const int p = request.ranks;
  return close_up(repeated("v-half", request, v_half_block(p), true), request.ticks,
                  v_half_peak(p));
}

Schedule make_v_min(const ScheduleRequest& request) {
  const int p = request.ranks;
  return close_up(repeated("v-min", request, v_min_block(p), true), request.ticks, v_min_peak(p));
}

Schedule make_1f1b_v(const ScheduleRequest& request) {
  const int p = request.ranks;
  BestSchedule best(request.ticks, BestSchedule::Goal::kMakespan);
  Schedule block = repeated("1f1b-v", request, one_f_one_b_v_block(p), false);
  best.offer(reorder(block, request.ticks, one_f_one_b_v_peak(p)));
  best.offer(std::move(block));
  return best.take();
}

}  // namespace sluice
