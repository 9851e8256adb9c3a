#include "sluice/comm/local.h"

#include <gtest/gtest.h>

#include <thread>

#include "sluice/comm/transport_cases_for_tests.h"
#include "sluice/common/errors.h"

namespace sluice {
namespace {

class LocalTransport : public ::testing::TestWithParam<std::tuple<int, TransportCase>> {};

TEST_P(LocalTransport, Does) {
  const auto& [ranks, one] = GetParam();
  if (ranks < one.min_ranks) return;
  auto transports =
      make_local_transports(ranks, {.timeout = one.timeout, .rendezvous = one.rendezvous});
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&one, &transport] { one.body(*transport); });
  }
  for (auto& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Cases, LocalTransport,
                         ::testing::Combine(::testing::Values(2, 3, 5),
                                            ::testing::ValuesIn(transport_cases())),
                         [](const auto& test) {
                           return fmt::format("{}With{}Ranks", std::get<1>(test.param).name,
                                              std::get<0>(test.param));
                         });

TEST(LocalHandOver, GivesTheSendersBufferWithoutCopy) {
  auto ranks = make_local_transports(2);
  auto owner = std::make_shared<int>(7);
  const Buffer sent{owner, reinterpret_cast<std::byte*>(owner.get()), sizeof(int)};
  ranks[0]->post_send(1, {Direction::kForward, 0, 3, 0}, sent);
  const auto ticket = ranks[1]->post_receive(0, {Direction::kForward, 0, 3, 0}, {});
  EXPECT_EQ(ranks[1]->wait_receive(ticket).data, sent.data);
}

}  // namespace
}  // namespace sluice
