#include "sluice/runtime/ledger.h"

#include <algorithm>
#include <utility>

#include "sluice/runtime/clock.h"

namespace sluice {

void MemoryLedger::set_limit(std::int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = num_bytes;
}

void MemoryLedger::charge(MemoryClass memory_class, std::int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  if (num_bytes > 0 && limit_ > 0 && total_ + num_bytes > limit_) {
    throw OutOfDeviceMemory(fmt::format(
        "out of device memory: {} bytes of {} beside {} bytes in use pass the limit of {}; use "
        "shorter sequences, more slices, or another pipeline.schedule",
        num_bytes, to_string(memory_class), total_, limit_));
  }
  live_[static_cast<std::size_t>(memory_class)] += num_bytes;
  total_ += num_bytes;
  if (num_bytes > 0) {
    auto& peak = peaks_.by_class[static_cast<std::size_t>(memory_class)];
    peak = std::max(peak, live_[static_cast<std::size_t>(memory_class)]);
    if (total_ > peaks_.total) {
      peaks_.total = total_;
      peaks_.at_total_peak = live_;
    }
  }
  if (memory_class != MemoryClass::kWorkspace) note_change();
}

void MemoryLedger::move(MemoryClass from, MemoryClass to, std::int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  live_[static_cast<std::size_t>(from)] -= num_bytes;
  auto& target = live_[static_cast<std::size_t>(to)];
  target += num_bytes;
  auto& peak = peaks_.by_class[static_cast<std::size_t>(to)];
  peak = std::max(peak, target);
  note_change();
}

void MemoryLedger::note_change() {
  if (recording_) samples_.push_back({now_ns(), live_});
}

BytesByClass MemoryLedger::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

MemoryPeaks MemoryLedger::peaks() const {
  const std::lock_guard lock(mutex_);
  return peaks_;
}

void MemoryLedger::reset_peaks() {
  const std::lock_guard lock(mutex_);
  peaks_ = {live_, total_, live_};
}

void MemoryLedger::record(bool on) {
  const std::lock_guard lock(mutex_);
  recording_ = on;
}

std::vector<MemorySample> MemoryLedger::take_samples() {
  const std::lock_guard lock(mutex_);
  return std::exchange(samples_, {});
}

}  // namespace sluice
