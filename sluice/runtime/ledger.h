// ledger.h - exact device bytes of one rank by class. Read next: allocator.h.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/trace/memory.h"

namespace sluice {

/// A rank would hold more bytes than its ledger allows.
class OutOfDeviceMemory : public Failure {
 public:
  using Failure::Failure;
};

/// Counts the requested bytes a rank holds, by class, with peaks. Tensors charge themselves through
/// the allocator (allocator.h).
/// Ownership: outlives every tensor charged to it.
/// Threads: any thread may call; guarded inside (tensors may be freed by another rank's thread).
class MemoryLedger {
 public:
  /// From now on the bytes of all classes together may not pass `num_bytes`; 0: no limit, as at
  /// first. A rank that is a thread can thus be given the memory of a device.
  void set_limit(std::int64_t num_bytes);

  /// Adds `num_bytes` (negative: takes away) to a class. Throws: OutOfDeviceMemory beyond the
  /// limit; nothing is added then.
  void charge(MemoryClass memory_class, std::int64_t num_bytes);

  /// Moves bytes from one class to another; the total does not change.
  void move(MemoryClass from, MemoryClass to, std::int64_t num_bytes);

  BytesByClass live() const;

  /// Peaks since construction or the last reset_peaks().
  MemoryPeaks peaks() const;

  /// Lets the peaks start over from what is live now.
  void reset_peaks();

  /// While recording keeps a sample per change of a class other than workspace, with the time that
  /// `now` (a monotonic clock in ns) gives. Off by default.
  void record(bool on);
  std::vector<MemorySample> take_samples();

 private:
  void note_change();  // REQUIRES: mutex_ held

  mutable std::mutex mutex_;
  BytesByClass live_{};
  std::int64_t total_ = 0;
  std::int64_t limit_ = 0;
  MemoryPeaks peaks_;
  bool recording_ = false;
  std::vector<MemorySample> samples_;
};

}  // namespace sluice
