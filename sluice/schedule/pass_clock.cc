#include "sluice/schedule/pass_clock.h"

#include <algorithm>

#include "sluice/schedule/squeeze.h"

namespace sluice {

PassClock::PassClock(const Schedule& schedule, const PassTicks& ticks)
    : placement_(schedule.placement),
      ticks_(ticks),
      num_microbatches_(static_cast<std::size_t>(schedule.num_microbatches)),
      forward_end_(unit(schedule.num_stages(), 0), kUnknown),
      input_end_(forward_end_) {}

std::int64_t PassClock::ticks(const Pass& pass) const {
  return ticks_of(ticks_, pass.kind, pass.stage);
}

std::int64_t PassClock::arrival(const Pass& pass) const {
  const auto [kind, stage, microbatch, slice] = pass;
  const auto from = [&](const std::vector<std::int64_t>& ends, int neighbour) {
    const std::int64_t end = ends[unit(neighbour, microbatch)];
    return end == kUnknown ? kUnknown : end + message(neighbour, stage);
  };
  if (kind == PassKind::kForward) return stage == 0 ? 0 : from(forward_end_, stage - 1);
  if (kind == PassKind::kBackwardWeight) return input_end_[unit(stage, microbatch)];
  const std::int64_t own = forward_end_[unit(stage, microbatch)];
  return stage == placement_.num_stages() - 1 ? own : std::max(own, from(input_end_, stage + 1));
}

int PassClock::finish(const Pass& pass, std::int64_t end) {
  if (pass.kind == PassKind::kBackwardWeight) return -1;
  const bool forward = pass.kind == PassKind::kForward;
  (forward ? forward_end_ : input_end_)[unit(pass.stage, pass.microbatch)] = end;
  const int waiting = forward ? pass.stage + 1 : pass.stage - 1;
  return waiting < 0 || waiting == placement_.num_stages() ? -1 : placement_.rank_of(waiting);
}

}  // namespace sluice
