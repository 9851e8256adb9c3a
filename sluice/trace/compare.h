// compare.h - what was predicted against what was measured, side by side.
#pragma once

#include <string>
#include <vector>

#include "sluice/trace/memory.h"
#include "sluice/trace/timeline.h"

namespace sluice {

/// One quantity from both sides, in one unit: seconds for times, bytes for memory.
struct Comparison {
  std::string what;
  double predicted = 0.0;
  double measured = 0.0;

  /// Measured over predicted; 1 when both are 0, infinite when only `predicted` is.
  double ratio() const;
};

/// Makespan, then the mean duration of every kind of pass that occurs in either, in seconds.
std::vector<Comparison> compare_times(const Timeline& predicted, const Timeline& measured);

/// For every rank the peak of every class that either side uses, then the peak of the total, in
/// bytes; a rank's rows are called "rank 0 activations". REQUIRES: one entry per rank on both
/// sides.
std::vector<Comparison> compare_memory(const std::vector<MemoryPeaks>& predicted,
                                       const std::vector<MemoryPeaks>& measured);

/// Tables with the columns predicted, measured and measured/predicted.
std::string show_times(const std::vector<Comparison>& rows);
std::string show_memory(const std::vector<Comparison>& rows);

}  // namespace sluice
