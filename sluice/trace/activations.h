// activations.h - how many saved activations each rank holds over time, read off a Timeline.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/trace/timeline.h"

namespace sluice {

/// Saved (microbatch, slice) activations of one rank from `time` on.
struct ActivationSample {
  std::int64_t time = 0;
  std::int64_t count = 0;
};

/// Curves by rank: +1 where a forward or a copy back begins, -1 where a full backward, a backward
/// for the weights or a copy out ends; samples in time order, one for every change. A rank without
/// any backward saves nothing (validation), so its curve is empty.
std::vector<std::vector<ActivationSample>> saved_activations(const Timeline& timeline);

}  // namespace sluice
