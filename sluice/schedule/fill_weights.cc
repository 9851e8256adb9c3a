#include "sluice/schedule/fill_weights.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "sluice/schedule/pass_clock.h"

namespace sluice {
namespace {

/// A rank on its way: `order` holds its F and I, of which `next` have run.
struct Lane {
  std::vector<Pass> order;
  std::size_t next = 0;
  std::vector<Pass> weights;  // of the I that ran, in their order
  std::size_t next_weight = 0;
  std::vector<Pass> passes;
  std::int64_t free = 0;
  std::int64_t idle = 0;
  int held = 0;

  bool has_next() const { return next < order.size(); }
  bool has_weight() const { return next_weight < weights.size(); }
};

class WeightFiller {
 public:
  WeightFiller(const Schedule& schedule, const PassTicks& ticks, int max_held,
               const FillRules& rules)
      : schedule_(schedule),
        clock_(schedule, ticks),
        max_held_(max_held),
        rules_(rules),
        lanes_(schedule.ranks.size()) {
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      for (const Pass& pass : schedule.ranks[r]) {
        if (pass.kind != PassKind::kBackwardWeight) lanes_[r].order.push_back(pass);
      }
      lanes_[r].passes.reserve(schedule.ranks[r].size());
    }
  }

  std::optional<Schedule> run() {
    for (std::size_t r = 0; r < lanes_.size(); ++r) queue_next(r);
    // In the order of their starts, so that the idle times compared are those of the same moment.
    while (!queue_.empty()) {
      const std::size_t rank = queue_.top().second;
      queue_.pop();
      if (!step(rank)) return std::nullopt;
    }
    Schedule result = schedule_;
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      if (lanes_[r].has_next()) return std::nullopt;
      while (lanes_[r].has_weight()) run_weight(lanes_[r]);
      result.ranks[r] = std::move(lanes_[r].passes);
    }
    return result;
  }

 private:
  // Queues the rank's next F or I if it is known when that can start.
  void queue_next(std::size_t rank) {
    const Lane& lane = lanes_[rank];
    if (!lane.has_next()) return;
    const std::int64_t arrival = clock_.arrival(lane.order[lane.next]);
    if (arrival != PassClock::kUnknown) queue_.emplace(std::max(arrival, lane.free), rank);
  }

  // One W or the next F or I; false when the forward does not fit and no W can make room.
  bool step(std::size_t rank) {
    Lane& lane = lanes_[rank];
    const Pass pass = lane.order[lane.next];
    const bool forward = pass.kind == PassKind::kForward;
    const std::int64_t arrival = clock_.arrival(pass);
    const bool full = forward && lane.held >= max_held_;
    if (lane.has_weight() && (full || wants_weight(rank, pass, arrival))) {
      run_weight(lane);
      queue_next(rank);
      return true;
    }
    if (full) return false;
    run_pass(lane, pass, arrival);
    ++lane.next;
    lane.held += forward ? 1 : 0;
    if (!forward) {
      lane.weights.push_back(
          {.kind = PassKind::kBackwardWeight, .stage = pass.stage, .microbatch = pass.microbatch});
    }
    const int neighbour = clock_.finish(pass, lane.free);
    queue_next(rank);
    wake(neighbour, pass, rank);
    return true;
  }

  // The neighbour's next pass became known when it is the one that waited for `pass`.
  void wake(int neighbour, const Pass& pass, std::size_t rank) {
    if (neighbour < 0 || static_cast<std::size_t>(neighbour) == rank) return;
    const Lane& lane = lanes_[static_cast<std::size_t>(neighbour)];
    if (!lane.has_next()) return;
    const Pass& next = lane.order[lane.next];
    if (next.kind != pass.kind || next.microbatch != pass.microbatch) return;
    const int away = pass.kind == PassKind::kForward ? 1 : -1;
    if (next.stage == pass.stage + away) queue_next(static_cast<std::size_t>(neighbour));
  }

  bool wants_weight(std::size_t rank, const Pass& next, std::int64_t arrival) const {
    const Lane& lane = lanes_[rank];
    if (lane.passes.empty() || arrival <= lane.free) return false;
    const std::int64_t gap = arrival - lane.free;
    if (gap >= clock_.ticks(lane.weights[lane.next_weight])) return true;
    const bool of_chunk_0 =
        next.kind == PassKind::kBackwardInput && schedule_.placement.chunk_of(next.stage) == 0;
    if (rules_.small_gaps == SmallGaps::kNone) return false;
    if (rules_.small_gaps == SmallGaps::kBeforeInputOfChunk0 && !of_chunk_0) return false;
    std::int64_t most = rules_.idle_budget;
    for (std::size_t other = 0; other < lanes_.size(); ++other) {
      if (other != rank) most = std::max(most, lanes_[other].idle);
    }
    return lane.idle + gap > most;
  }

  void run_pass(Lane& lane, const Pass& pass, std::int64_t arrival) {
    const std::int64_t begin = std::max(arrival, lane.free);
    if (!lane.passes.empty()) lane.idle += begin - lane.free;
    lane.free = begin + clock_.ticks(pass);
    lane.passes.push_back(pass);
  }

  void run_weight(Lane& lane) {
    run_pass(lane, lane.weights[lane.next_weight++], lane.free);
    --lane.held;
  }

  using Start = std::pair<std::int64_t, std::size_t>;  // time, rank

  const Schedule& schedule_;
  PassClock clock_;
  int max_held_;
  FillRules rules_;
  std::vector<Lane> lanes_;
  std::priority_queue<Start, std::vector<Start>, std::greater<>> queue_;
};

}  // namespace

std::optional<Schedule> fill_weights(const Schedule& schedule, const PassTicks& ticks, int max_held,
                                     const FillRules& rules) {
  return WeightFiller(schedule, ticks, max_held, rules).run();
}

}  // namespace sluice
