#include "sluice/trace/axis.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "sluice/common/errors.h"

namespace sluice {

TimeAxis real_time_axis(const Timeline& timeline) {
  const double seconds =
      static_cast<double>(timeline.end() - timeline.begin()) * timeline.seconds_per_tick;
  if (seconds >= 1.0) return {timeline.seconds_per_tick, "s"};
  if (seconds >= 1e-3) return {timeline.seconds_per_tick * 1e3, "ms"};
  return {timeline.seconds_per_tick * 1e6, "us"};
}

double in_units(std::int64_t ticks, double unit_per_tick) {
  const std::string text = fmt::format("{:.12g}", static_cast<double>(ticks) * unit_per_tick);
  return std::strtod(text.c_str(), nullptr);
}

std::string show_time(std::int64_t ticks, const TimeAxis& axis) {
  const std::string number = fmt::format("{:.6g}", in_units(ticks, axis.unit_per_tick));
  return axis.unit.empty() ? number : number + " " + axis.unit;
}

double nice_step(double step) {
  SLUICE_CHECK(step > 0.0 && std::isfinite(step), "step {}", step);
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1.0 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace sluice
