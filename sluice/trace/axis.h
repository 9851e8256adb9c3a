// axis.h - from ticks to the unit that a picture shows, and where its marks stand.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/trace/timeline.h"

namespace sluice {

/// How ticks are shown. `unit` is empty for times without a unit ("1,1,1").
struct TimeAxis {
  double unit_per_tick = 1.0;
  std::string unit;
};

/// The axis of a timeline in real time: s, ms or us, whichever fits its length.
TimeAxis real_time_axis(const Timeline& timeline);

/// `ticks` in the unit of the axis, to 12 significant digits, so that 28.5 comes out as 28.5 and
/// not as 28.499999999999996.
double in_units(std::int64_t ticks, double unit_per_tick);

/// "28.5 ms", or "28.5" without a unit; at most 6 significant digits.
std::string show_time(std::int64_t ticks, const TimeAxis& axis);

/// The smallest of 1, 2, 5 times a power of ten that is at least `step`. REQUIRES: step > 0.
double nice_step(double step);

}  // namespace sluice
