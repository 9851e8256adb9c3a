#include "sluice/sim/ticks.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "sluice/common/errors.h"
#include "sluice/sim/cost_model.h"

namespace sluice {

std::int64_t to_micro_units(double time, std::string_view name) {
  if (!std::isfinite(time) || time < 0.0 || time > kLongestTime) {
    throw InvalidArgument(
        fmt::format("{} = {} must be a finite number from 0 to {}", name, time, kLongestTime));
  }
  return std::llround(time * kTicksPerUnit);
}

std::int64_t common_chunks(const Placement& placement) {
  std::int64_t chunks = 1;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    const auto count = static_cast<std::int64_t>(placement.stages_of(rank).size());
    if (count > 0) chunks = std::lcm(chunks, count);
    if (chunks > 1'000'000) {
      throw InvalidArgument(
          "the ranks' numbers of stages differ too much for one common tick; place stages more "
          "evenly");
    }
  }
  return chunks;
}

std::int64_t stage_ticks(const Placement& placement, int stage, std::int64_t chunks,
                         std::int64_t ticks) {
  return ticks *
         (chunks / static_cast<std::int64_t>(placement.stages_of(placement.rank_of(stage)).size()));
}

}  // namespace sluice
