#include "sluice/schedule/reorder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sluice/schedule/pass_clock.h"
#include "sluice/schedule/squeeze.h"

namespace sluice {
namespace {

constexpr int kMostRounds = 8;

struct Placed {
  Pass pass;
  std::int64_t start = 0;
  std::int64_t end = 0;
  int held = 0;  // activations of the rank after this pass
};

int change_of_held(PassKind kind) {
  if (kind == PassKind::kForward) return 1;
  return kind == PassKind::kBackwardInput ? 0 : -1;
}

/// One round: looks at every pass in the order of its start.
class Mover {
 public:
  Mover(const Schedule& schedule, const PassTicks& ticks, int max_held)
      : schedule_(schedule), clock_(schedule, ticks), max_held_(max_held) {
    const SqueezedTimes times = squeeze(schedule, ticks);
    makespan_ = times.makespan;
    lanes_.resize(schedule.ranks.size());
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      int held = 0;
      for (std::size_t i = 0; i < schedule.ranks[r].size(); ++i) {
        const Pass& pass = schedule.ranks[r][i];
        const std::int64_t start = times.start[r][i];
        held += change_of_held(pass.kind);
        lanes_[r].push_back(
            {.pass = pass, .start = start, .end = start + clock_.ticks(pass), .held = held});
        queue_.emplace_back(start, r);
      }
    }
    // Stable: passes of no ticks that start together keep their order.
    std::stable_sort(queue_.begin(), queue_.end());
  }

  /// Squeezed, before anything moves.
  std::int64_t makespan() const { return makespan_; }

  /// Returns whether anything moved.
  bool run() {
    // What has not been looked at is the tail of each lane, as passes only move to the front.
    std::vector<std::size_t> next(lanes_.size(), 0);
    bool moved = false;
    for (const auto& [start, rank] : queue_) moved = place(lanes_[rank], next[rank]++) || moved;
    return moved;
  }

  Schedule take() {
    Schedule result = schedule_;
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      for (std::size_t i = 0; i < lanes_[r].size(); ++i) result.ranks[r][i] = lanes_[r][i].pass;
    }
    return result;
  }

 private:
  // Gives the pass at `from` its earliest place.
  bool place(std::vector<Placed>& lane, std::size_t from) {
    const Placed moving = lane[from];
    const std::int64_t ready = clock_.arrival(moving.pass);
    const std::int64_t length = moving.end - moving.start;
    std::size_t to = from;
    std::int64_t start = moving.start;
    for (std::size_t i = from;; --i) {
      const std::int64_t begin = std::max(ready, i == 0 ? 0 : lane[i - 1].end);
      // Not begin + length: a pass whose input never comes is ready at the end of time.
      if (begin <= (i == from ? moving.end : lane[i].start) - length) {
        to = i;
        start = begin;
      }
      if (i == 0 || lane[i - 1].end <= ready || !may_overtake(lane, i - 1, moving.pass)) break;
    }
    std::rotate(lane.begin() + static_cast<std::ptrdiff_t>(to),
                lane.begin() + static_cast<std::ptrdiff_t>(from),
                lane.begin() + static_cast<std::ptrdiff_t>(from) + 1);
    lane[to].start = start;
    lane[to].end = start + length;
    for (std::size_t i = to; i <= from && to < from; ++i) {
      lane[i].held = (i == 0 ? 0 : lane[i - 1].held) + change_of_held(lane[i].pass.kind);
    }
    clock_.finish(moving.pass, start + length);
    return to < from;
  }

  // Whether `pass` may run before lane[at], which it followed.
  bool may_overtake(const std::vector<Placed>& lane, std::size_t at, const Pass& pass) const {
    const Placed& other = lane[at];
    if (other.pass.kind == pass.kind && other.pass.stage == pass.stage) return false;
    if (pass.kind != PassKind::kForward) return true;
    const int before = at == 0 ? 0 : lane[at - 1].held;
    return std::max(before, other.held) < max_held_;
  }

  const Schedule& schedule_;
  PassClock clock_;
  int max_held_;
  std::int64_t makespan_ = 0;
  std::vector<std::vector<Placed>> lanes_;
  std::vector<std::pair<std::int64_t, std::size_t>> queue_;  // start, rank
};

}  // namespace

Schedule reorder(const Schedule& schedule, const PassTicks& ticks, int max_held) {
  Schedule result = schedule;
  std::int64_t makespan = std::numeric_limits<std::int64_t>::max();
  for (int round = 0; round < kMostRounds; ++round) {
    Mover mover(result, ticks, max_held);
    if (mover.makespan() >= makespan || !mover.run()) break;
    makespan = mover.makespan();
    result = mover.take();
  }
  return result;
}

}  // namespace sluice
