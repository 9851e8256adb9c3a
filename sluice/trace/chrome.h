// chrome.h - a Timeline as Chrome trace JSON, which Perfetto and chrome://tracing open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/trace/memory.h"
#include "sluice/trace/timeline.h"

namespace sluice {

struct ChromeTraceOptions {
  const MemoryCurve* memory = nullptr;  // counters of bytes by class; null: of saved activations
  /// Bytes that one D of each stage moves: the counters of what is away are then in bytes.
  std::vector<std::int64_t> movable_bytes;
};

/// Writes every span as a complete event: the process is the rank, the thread the lane, times are
/// in microseconds from the first span. An arrow leads from every send to its receive. Counters
/// show the memory of each rank and, where it copies activations out, how much is away: from the
/// begin of a D to the end of its U. Events come in time order, after the names of ranks and lanes.
std::string chrome_trace(const Timeline& timeline, const ChromeTraceOptions& options = {});

}  // namespace sluice
