#include "sluice/runtime/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockCache, GivesAFreedBlockToTheNextRequestOfItsSize) {
  BlockCache cache;
  void* first = cache.allocate(3 * kMiB);
  void* second = cache.allocate(2 * kMiB);
  cache.free(first, 3 * kMiB);
  EXPECT_EQ(cache.allocate(3 * kMiB), first);
  EXPECT_EQ(cache.num_bytes_kept(), 0U);
  cache.free(first, 3 * kMiB);
  cache.free(second, 2 * kMiB);
}

TEST(BlockCache, SpreadsBlocksOverTheLinesOfAPage) {
  BlockCache cache;
  std::vector<std::uintptr_t> offsets;
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.push_back(cache.allocate(kMiB));
    const auto address = reinterpret_cast<std::uintptr_t>(blocks.back());
    EXPECT_EQ(address % 64, 0U);
    for (const std::uintptr_t other : offsets) EXPECT_NE(address % 4096, other);
    offsets.push_back(address % 4096);
    std::memset(blocks.back(), 1, kMiB);
  }
  for (void* block : blocks) cache.free(block, kMiB);
}

TEST(BlockCache, HoldsAtMostASixtyFourthAndFourMebibytesMoreThanWasOnceInUse) {
  BlockCache cache;
  std::mt19937 random(3);
  std::vector<std::pair<void*, std::size_t>> live;
  std::size_t most = 0, most_held = 0;
  for (int i = 0; i < 2000; ++i) {
    if (live.empty() || (random() % 2 == 0 && live.size() < 20)) {
      const std::size_t size = kMiB / 4 + random() % 50 * 4096;
      live.emplace_back(cache.allocate(size), size);
      ASSERT_NE(live.back().first, nullptr);
      static_cast<char*>(live.back().first)[size - 1] = 1;
    } else {
      const std::size_t at = random() % live.size();
      cache.free(live[at].first, live[at].second);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    most = std::max(most, cache.num_bytes_in_use());
    most_held = std::max(most_held, cache.num_bytes_in_use() + cache.num_bytes_kept());
    EXPECT_LE(cache.num_bytes_in_use() + cache.num_bytes_kept(), most + most / 64 + 4 * kMiB);
  }
  EXPECT_GT(most_held, most) << "the sizes did not drive each other out";
  for (const auto& [block, size] : live) cache.free(block, size);
  EXPECT_EQ(cache.num_bytes_in_use(), 0U);
  cache.release();
  EXPECT_EQ(cache.num_bytes_kept(), 0U);
}

TEST(BlockCache, KeepsThreadsBlocksApart) {
  BlockCache cache;
  const auto work = [&cache](unsigned char mark) {
    for (int i = 0; i < 200; ++i) {
      auto* block = static_cast<unsigned char*>(cache.allocate(kMiB));
      std::memset(block, mark, kMiB);
      for (std::size_t at = 0; at < kMiB; at += 4096) ASSERT_EQ(block[at], mark);
      cache.free(block, kMiB);
    }
  };
  std::thread other(work, 1);
  work(2);
  other.join();
  EXPECT_EQ(cache.num_bytes_in_use(), 0U);
}

}  // namespace
}  // namespace sluice
