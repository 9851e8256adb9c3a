// best_schedule.h - keeps the best of several orders for the same step. Used by the generators.
#pragma once

#include <cstdint>
#include <tuple>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

/// Above this many passes generators try only a few orders: the search would take seconds.
inline constexpr std::int64_t kMostPassesToSearch = 200'000;

/// Compares schedules by their squeezed times and keeps the best one; the first of equals stays.
class BestSchedule {
 public:
  /// What is compared first. The other one and then the highest peak break ties.
  enum class Goal {
    kSpan,      // longest own time of a rank: the zero-bubble papers' definition
    kMakespan,  // first start to last end over all ranks
  };

  /// `ticks` must outlive the object.
  BestSchedule(const PassTicks& ticks, Goal goal) : ticks_(ticks), goal_(goal) {}

  /// Takes `schedule` if it runs to its end and is better than what is kept. Returns whether.
  bool offer(Schedule schedule);

  /// The kept schedule's time by the goal.
  /// REQUIRES: something is kept.
  std::int64_t time() const { return std::get<0>(key_); }

  /// Hands out what is kept. Throws: InternalError when no schedule that runs was offered.
  Schedule take();

 private:
  const PassTicks& ticks_;
  Goal goal_;
  bool has_one_ = false;
  std::tuple<std::int64_t, std::int64_t, int> key_;
  Schedule kept_;
};

}  // namespace sluice
