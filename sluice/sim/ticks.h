// ticks.h - from times in a unit to whole ticks. Read next: cost_model.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// Times are read to a millionth of their unit.
inline constexpr double kTicksPerUnit = 1e6;

/// A time in millionths of its unit. Throws: InvalidArgument with `name` when it is negative, not
/// finite or above kLongestTime.
std::int64_t to_micro_units(double time, std::string_view name);

/// The least number of parts of a rank's time that every rank's number of stages divides. Throws:
/// InvalidArgument when there is no reasonable one.
std::int64_t common_chunks(const Placement& placement);

/// What one of `stage`'s slices takes when a rank's whole time for one is `ticks`, in ticks of
/// which common_chunks() are one of the rank's.
std::int64_t stage_ticks(const Placement& placement, int stage, std::int64_t chunks,
                         std::int64_t ticks);

}  // namespace sluice
