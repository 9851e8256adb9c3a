// clock.h - the clock of measured timelines.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

/// Nanoseconds of the monotonic clock, the same for all threads of the process.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace sluice
