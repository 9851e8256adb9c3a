// pass_clock.h - when passes end and when others may start, while an order is still being made.
// Used by reorder() and fill_weights().
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

/// Ends of the passes that ran so far, one slice per microbatch. Keeps references to what it is
/// built from.
class PassClock {
 public:
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

  /// REQUIRES: `schedule` has one slice, and `ticks` passed check_ticks().
  PassClock(const Schedule& schedule, const PassTicks& ticks);

  std::int64_t ticks(const Pass& pass) const;

  /// When all that `pass` needs is on its rank; kUnknown when some of it has not run.
  std::int64_t arrival(const Pass& pass) const;

  /// Notes the end of a pass and returns the rank that may wait for it, or -1.
  int finish(const Pass& pass, std::int64_t end);

 private:
  std::size_t unit(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * num_microbatches_ +
           static_cast<std::size_t>(microbatch);
  }
  std::int64_t message(int from_stage, int to_stage) const {
    return placement_.rank_of(from_stage) == placement_.rank_of(to_stage) ? 0 : ticks_.message;
  }

  const Placement& placement_;
  const PassTicks& ticks_;
  std::size_t num_microbatches_;
  std::vector<std::int64_t> forward_end_;
  std::vector<std::int64_t> input_end_;  // of I, or of B
};

}  // namespace sluice
