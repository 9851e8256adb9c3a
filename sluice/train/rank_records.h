// rank_records.h - what every rank measured of a run, brought together. Read next: trainer.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/runtime/activation_store.h"
#include "sluice/trace/memory.h"
#include "sluice/trace/timeline.h"

namespace sluice {

/// One rank's measurements. Times are those of its process's monotonic clock.
struct RankRecord {
  MemoryPeaks memory;       // over all training steps
  std::int64_t begin = 0;   // of the measured step
  std::vector<Span> spans;  // of the measured step
  CopyCounters copies;
  std::vector<MemorySample> samples;  // of the traced step
};
using RankRecords = std::vector<RankRecord>;

/// The largest of two measurements, class by class.
void merge_peaks(MemoryPeaks& peaks, const MemoryPeaks& more);

/// The records of all ranks, on every rank; `mine` is this rank's alone. Clocks of different
/// machines do not compare: times are moved so that the measured step begins at once on all ranks,
/// when it did on rank 0. All ranks call it together.
RankRecords gather_records(Transport& world, const RankRecords& mine);

}  // namespace sluice
