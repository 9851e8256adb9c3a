#include "sluice/comm/collectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "sluice/comm/local.h"

namespace sluice {
namespace {

Buffer buffer_of(int value) {
  auto owner = std::make_shared<int>(value);
  return {owner, reinterpret_cast<std::byte*>(owner.get()), sizeof(int)};
}

int value_of(const Buffer& buffer) {
  int value = 0;
  std::memcpy(&value, buffer.data, sizeof(value));
  return value;
}

void run(int num_ranks, bool rendezvous, const std::function<void(Transport&)>& body) {
  const auto transports = make_local_transports(num_ranks, {.rendezvous = rendezvous});
  std::vector<std::thread> threads;
  for (const auto& transport : transports) threads.emplace_back([&] { body(*transport); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Collectives, GiveEveryRankWhatItsRootOrItsPeersGave) {
  for (const bool rendezvous : {false, true}) {
    for (const int num_ranks : {1, 2, 3, 5}) {
      run(num_ranks, rendezvous, [&](Transport& transport) {
        Collectives collectives(transport);
        const int self = transport.rank();
        std::vector<Collectives::Operation> broadcasts, gathers, to_root;
        for (int i = 0; i < 4; ++i) {
          const int root = i % num_ranks;
          broadcasts.push_back(collectives.post_broadcast(
              root, {1, i, 0}, self == root ? buffer_of(100 + i) : Buffer{}));
          gathers.push_back(collectives.post_gather(-1, {2, i, 0}, buffer_of(10 * self + i), {}));
          to_root.push_back(collectives.post_gather(root, {3, i, 0}, buffer_of(7 * self + i), {}));
        }
        // Waited for in another order than posted.
        for (int i = 3; i >= 0; --i) {
          const auto at = static_cast<std::size_t>(i);
          const std::vector<Buffer> all = collectives.wait(gathers[at]);
          ASSERT_EQ(all.size(), static_cast<std::size_t>(num_ranks));
          for (int rank = 0; rank < num_ranks; ++rank) {
            EXPECT_EQ(value_of(all[static_cast<std::size_t>(rank)]), 10 * rank + i);
          }
          EXPECT_EQ(value_of(collectives.wait(broadcasts[at]).front()), 100 + i);
          const std::vector<Buffer> mine = collectives.wait(to_root[at]);
          ASSERT_EQ(mine.size(), static_cast<std::size_t>(self == i % num_ranks ? num_ranks : 0));
          for (std::size_t rank = 0; rank < mine.size(); ++rank) {
            EXPECT_EQ(value_of(mine[rank]), 7 * static_cast<int>(rank) + i);
          }
        }
        collectives.flush();
      });
    }
  }
}

TEST(Collectives, HandOneOwnerToAllRanksOfAProcess) {
  std::vector<const std::byte*> seen(3);
  run(3, false, [&](Transport& transport) {
    Collectives collectives(transport);
    auto operation =
        collectives.post_broadcast(1, {1, 0, 0}, transport.rank() == 1 ? buffer_of(5) : Buffer{});
    seen[static_cast<std::size_t>(transport.rank())] = collectives.wait(operation).front().data;
    transport.barrier();
  });
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[2], seen[1]);
}

}  // namespace
}  // namespace sluice
