#include "sluice/runtime/block_cache.h"

#include <sys/mman.h>

#include <algorithm>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;
constexpr std::uint32_t kNumOffsets = kPage / kLine;
// Without any slack the sizes of forward and backward drive each other out at the peak: two
// processes of a small model took four page faults in five for that, and a tenth of their time.
constexpr std::size_t kSlackShare = 64;
constexpr std::size_t kSlackBytes = std::size_t{4} << 20;

// One page more than asked for: room for the block's offset in its first page.
std::size_t mapped_size(std::size_t num_bytes) {
  return (num_bytes + 2 * kPage - 1) / kPage * kPage;
}

void unmap(std::byte* block, std::size_t size) {
  auto* start = block - reinterpret_cast<std::uintptr_t>(block) % kPage;
  ::munmap(start, size);
}

}  // namespace

BlockCache::~BlockCache() { release(); }

void* BlockCache::allocate(std::size_t num_bytes) {
  const std::size_t size = mapped_size(num_bytes);
  const std::lock_guard lock(mutex_);
  // The block freed last is the one most likely still in the processor's cache.
  if (auto next = kept_by_size_.upper_bound(size);
      next != kept_by_size_.begin() && std::prev(next)->first == size) {
    const auto found = std::prev(next);
    std::byte* block = found->second->block;
    kept_.erase(found->second);
    kept_by_size_.erase(found);
    kept_bytes_ -= size;
    in_use_ += size;
    return block;
  }
  make_room(size);
  void* start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  in_use_ += size;
  most_in_use_ = std::max(most_in_use_, in_use_);
  // An odd step visits every line of a page; neighbours in time lie far apart.
  next_offset_ = (next_offset_ + 13) % kNumOffsets;
  return static_cast<std::byte*>(start) + next_offset_ * kLine;
}

void BlockCache::free(void* block, std::size_t num_bytes) {
  const std::size_t size = mapped_size(num_bytes);
  const std::lock_guard lock(mutex_);
  SLUICE_CHECK(size <= in_use_, "{} bytes freed, {} in use", size, in_use_);
  in_use_ -= size;
  kept_bytes_ += size;
  kept_.push_back({static_cast<std::byte*>(block), size});
  kept_by_size_.emplace(size, std::prev(kept_.end()));
}

void BlockCache::make_room(std::size_t size) {
  const std::size_t most = std::max(most_in_use_, in_use_ + size);
  const std::size_t allowed = most + most / kSlackShare + kSlackBytes;
  while (kept_bytes_ > 0 && in_use_ + size + kept_bytes_ > allowed) release_oldest();
}

void BlockCache::release_oldest() {
  const Position oldest = kept_.begin();
  auto [entry, end] = kept_by_size_.equal_range(oldest->size);
  while (entry != end && entry->second != oldest) ++entry;
  SLUICE_CHECK(entry != end, "a kept block of {} bytes is not in the index", oldest->size);
  unmap(oldest->block, oldest->size);
  kept_bytes_ -= oldest->size;
  kept_by_size_.erase(entry);
  kept_.erase(oldest);
}

void BlockCache::release() {
  const std::lock_guard lock(mutex_);
  while (!kept_.empty()) release_oldest();
}

std::size_t BlockCache::num_bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t BlockCache::num_bytes_kept() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace sluice
