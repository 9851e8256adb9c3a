#include "sluice/schedule/best_schedule.h"

#include <algorithm>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/squeeze.h"

namespace sluice {

bool BestSchedule::offer(Schedule schedule) {
  const SqueezedTimes times = squeeze(schedule, ticks_);
  if (!times.is_complete) return false;
  const int peak = *std::max_element(times.peak.begin(), times.peak.end());
  auto key = goal_ == Goal::kSpan ? std::tuple(times.max_span, times.makespan, peak)
                                  : std::tuple(times.makespan, times.max_span, peak);
  if (has_one_ && key >= key_) return false;
  has_one_ = true;
  key_ = key;
  kept_ = std::move(schedule);
  return true;
}

Schedule BestSchedule::take() {
  SLUICE_CHECK(has_one_, "none of the orders tried can run");
  return std::move(kept_);
}

}  // namespace sluice
