// ZB-V (arXiv 2401.10241): V placement with split backwards, peak memory of 1F1B on every rank and
// no idle time between a rank's own passes when F = I = W.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/schedule/best_schedule.h"
#include "sluice/schedule/fill_weights.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/squeeze.h"

namespace sluice {
namespace {

constexpr int kBudgetParts = 8;

/// Writes the order of one rank of a V from patterns of letters: F and I are the next forward and
/// backward for the input of chunk 0, f and i of chunk 1, W the oldest weight pass that is due.
/// What is beyond the last microbatch, or not due, is left out.
class RankWriter {
 public:
  RankWriter(int rank, int num_ranks, int num_microbatches)
      : stage_{rank, 2 * num_ranks - 1 - rank}, num_microbatches_(num_microbatches) {}

  void repeat(int times, std::string_view pattern) {
    for (int i = 0; i < times; ++i) {
      for (const char letter : pattern) write(letter);
    }
  }
  bool has_forward() const { return std::min(forwards_[0], forwards_[1]) < num_microbatches_; }
  std::vector<Pass> finish() {
    while (!due_.empty()) write('W');
    return std::move(passes_);
  }

 private:
  void write(char letter) {
    const std::size_t chunk = letter == 'f' || letter == 'i' ? 1 : 0;
    if (letter == 'W') {
      if (due_.empty()) return;
      passes_.push_back(due_.front());
      due_.pop_front();
    } else if (letter == 'F' || letter == 'f') {
      add(PassKind::kForward, chunk, forwards_[chunk]);
    } else if (add(PassKind::kBackwardInput, chunk, inputs_[chunk])) {
      due_.push_back(passes_.back());
      due_.back().kind = PassKind::kBackwardWeight;
    }
  }

  bool add(PassKind kind, std::size_t chunk, int& next_microbatch) {
    if (next_microbatch == num_microbatches_) return false;
    passes_.push_back({.kind = kind, .stage = stage_[chunk], .microbatch = next_microbatch++});
    return true;
  }

  std::array<int, 2> stage_;
  int num_microbatches_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> inputs_{};
  std::deque<Pass> due_;
  std::vector<Pass> passes_;
};

// The hand-written order of the paper.
std::vector<Pass> hand_written(int rank, int num_ranks, int num_microbatches) {
  const int from_turn = num_ranks - rank;
  RankWriter writer(rank, num_ranks, num_microbatches);
  writer.repeat(2 * from_turn - 1, "F");
  writer.repeat(rank, "fF");
  writer.repeat(from_turn, "fiW");
  while (writer.has_forward()) writer.repeat(1, "FIWfiW");
  writer.repeat(rank, "Ii");
  writer.repeat(from_turn, "IW");
  return writer.finish();
}

// Ticks of all passes of the rank that has the most of them.
std::int64_t longest_work(const Schedule& schedule, const PassTicks& ticks) {
  std::int64_t longest = 0;
  for (const std::vector<Pass>& passes : schedule.ranks) {
    std::int64_t work = 0;
    for (const Pass& pass : passes) work += ticks_of(ticks, pass.kind, pass.stage);
    longest = std::max(longest, work);
  }
  return longest;
}

// The hand-written order with its W in place, and with W that fill gaps in several ways.
void offer_candidates(const Schedule& order, const PassTicks& ticks, int max_held,
                      BestSchedule& best) {
  best.offer(order);
  const auto offer_filled = [&](SmallGaps gaps, std::int64_t idle_budget) {
    std::optional<Schedule> filled =
        fill_weights(order, ticks, max_held, {.small_gaps = gaps, .idle_budget = idle_budget});
    if (filled.has_value()) best.offer(std::move(*filled));
  };
  for (const SmallGaps gaps :
       {SmallGaps::kNone, SmallGaps::kBeforeInputOfChunk0, SmallGaps::kAll}) {
    offer_filled(gaps, 0);
  }
  if (order.num_passes() > kMostPassesToSearch) return;
  // Time that the busiest rank idles even so: with a budget of a part of it, W run only where they
  // shorten the worst rank.
  const std::int64_t idle = best.time() - longest_work(order, ticks);
  for (int part = 1; part < kBudgetParts; ++part) {
    offer_filled(SmallGaps::kBeforeInputOfChunk0, idle * part / kBudgetParts);
    offer_filled(SmallGaps::kAll, idle * part / kBudgetParts);
  }
}

}  // namespace

Schedule make_zb_v(const ScheduleRequest& request) {
  require_chunks("zb-v", request, 2);
  require_no_group("zb-v", request);
  check_ticks(request.ticks, 2 * request.ranks);
  Schedule order = empty_schedule("zb-v", Placement::v_shape(request.ranks), request);
  for (int rank = 0; rank < request.ranks; ++rank) {
    order.ranks[static_cast<std::size_t>(rank)] =
        hand_written(rank, request.ranks, request.microbatches);
  }
  BestSchedule best(request.ticks, BestSchedule::Goal::kSpan);
  offer_candidates(order, request.ticks, 2 * request.ranks, best);
  return best.take();
}

}  // namespace sluice
