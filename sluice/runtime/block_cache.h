// block_cache.h - large blocks of host memory, kept for reuse without ever holding much more than
// was once in use. Read next: allocator.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>

namespace sluice {

/// Hands out large blocks straight from the system and keeps freed ones for the next request of the
/// same size. A training step asks for few sizes again and again, so nearly every block is reused
/// and its pages are there already.
/// Invariant: blocks in use plus blocks kept never exceed the most bytes that were in use at once
/// by more than a 64th and 4 MiB. When a new block would break it, kept blocks go back to the
/// system, those kept longest first. So the resident memory of a process is what its ledgers' peak
/// says and that little, where a general allocator leaves gaps (measured: 60 to 140 MiB of 1200),
/// and where giving every block back at once costs a tenth of the time in page faults. Threads:
/// any; one lock, held for a few list operations, or a system call.
class BlockCache {
 public:
  BlockCache() = default;
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// Uninitialised memory of at least `num_bytes`, aligned to 64 bytes; null when the system has
  /// none. Starts of blocks are spread over the first lines of a page: blocks that all start at one
  /// offset compete for the same sets of the cache.
  void* allocate(std::size_t num_bytes);

  /// Takes back a block. REQUIRES: from allocate() with the same `num_bytes`, not yet taken back.
  void free(void* block, std::size_t num_bytes);

  /// Gives every kept block back to the system.
  void release();

  std::size_t num_bytes_in_use() const;
  std::size_t num_bytes_kept() const;

 private:
  struct Kept {
    std::byte* block;
    std::size_t size;
  };
  using Position = std::list<Kept>::iterator;

  void make_room(std::size_t size);
  void release_oldest();

  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // oldest first
  std::multimap<std::size_t, Position> kept_by_size_;
  std::size_t in_use_ = 0, kept_bytes_ = 0, most_in_use_ = 0;
  std::uint32_t next_offset_ = 0;
};

}  // namespace sluice
