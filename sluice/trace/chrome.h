// chrome.h - a Timeline as Chrome trace JSON, which Perfetto and chrome://tracing open.
#pragma once

#include <string>

#include "sluice/trace/memory.h"
#include "sluice/trace/timeline.h"

namespace sluice {

struct ChromeTraceOptions {
  const MemoryCurve* memory = nullptr;  // counters of bytes by class; null: of saved activations
};

/// Writes every span as a complete event: the process is the rank, the thread the lane, times are
/// in microseconds from the first span. An arrow leads from every send to its receive. Counters
/// show the memory of each rank. Events come in time order, after the names of ranks and lanes.
std::string chrome_trace(const Timeline& timeline, const ChromeTraceOptions& options = {});

}  // namespace sluice
