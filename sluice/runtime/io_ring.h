// io_ring.h - reads and writes of a file that go on while the caller does something else, by the
// kernel's io_uring. Used by the disk tier (disk_store.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice {

/// Requests of one thread, which complete in any order. Threads: one. Ownership: the buffers of
/// requests under way belong to the kernel; wait for all before they or the file go away.
class IoRing {
 public:
  /// A request that is over: bytes moved, which may be fewer than asked for, or a negative errno.
  struct Done {
    std::uint64_t id = 0;
    std::int64_t result = 0;
  };

  /// For at most `most_requests` at once. Null where the kernel has no io_uring or refuses it.
  static std::unique_ptr<IoRing> open(unsigned most_requests);
  ~IoRing();
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  /// Hands `length` bytes at `data` to the kernel, to be written to or read from `offset` of
  /// `file`. False when the kernel did not take the request. REQUIRES: fewer than most_requests
  /// under way.
  bool submit(bool write, int file, std::byte* data, std::size_t length, std::int64_t offset,
              std::uint64_t id);

  /// The next request to be over. REQUIRES: one is under way.
  Done wait();

 private:
  struct Impl;
  explicit IoRing(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
