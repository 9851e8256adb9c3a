// far_store.h - memory away from the device for copied-out activations: host memory or a file.
// Read next: activation_store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/program/offload_slots.h"

namespace sluice {

/// Parts of one activation, written one after the other.
using ConstParts = std::vector<std::span<const std::byte>>;
using Parts = std::vector<std::span<std::byte>>;

/// Where one rank's activations go. `unit` is a PassGrid index.
/// Threads: write() and read() are called by one helper thread at a time.
class FarStore {
 public:
  virtual ~FarStore() = default;
  /// Returns once `parts` may be overwritten and read() would find them.
  /// Throws: Failure with the reason, and for a file its name and the system's words.
  virtual void write(std::size_t unit, const ConstParts& parts) = 0;
  /// REQUIRES: the same unit and sizes as written. Throws: as write().
  virtual void read(std::size_t unit, const Parts& parts) = 0;
  /// Bytes that are reserved, for the memory report.
  virtual std::int64_t capacity() const = 0;
};

/// Host memory that grows as needed and is reused from step to step: for tests and single checks.
std::unique_ptr<FarStore> make_growing_store();

/// One block of host memory of exactly the planned size. On a CPU this is a second pool beside the
/// ledger's, for tests and measurement.
/// Throws: InvalidArgument when the machine has not that much memory free.
std::unique_ptr<FarStore> make_host_store(const OffloadSlots& slots);

/// How the disk tier asks for reads and writes.
enum class DiskAccess : std::uint8_t {
  kAsync,  // several at once by io_uring, where the kernel has that; else as kPlain
  kPlain,  // one after the other
};

/// A file in `folder`, allocated at once and without a name from the start, so that nothing is left
/// behind however the process ends. Written and read around the page cache where the file system
/// allows that; otherwise pages are dropped after use.
/// Throws: InvalidArgument when the folder cannot be written or has too little room, with both
/// numbers and the setting to change.
std::unique_ptr<FarStore> make_disk_store(const OffloadSlots& slots, const std::string& folder,
                                          DiskAccess access = DiskAccess::kAsync);

/// The alignment that plan_offload_slots() should use for any of them.
inline constexpr std::int64_t kFarAlignment = 4096;

/// Throws: InvalidArgument unless `num_bytes`, of all ranks of this process together, are free in
/// host memory, or with a `folder` on its disk.
void check_far_room(std::int64_t num_bytes, const std::string& folder);

}  // namespace sluice
