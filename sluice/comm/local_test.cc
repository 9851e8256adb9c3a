#include "sluice/comm/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

Buffer number(int value) {
  auto owner = std::make_shared<int>(value);
  auto* data = reinterpret_cast<std::byte*>(owner.get());
  return {owner, data, sizeof(int)};
}

int value_of(const Buffer& buffer) { return *static_cast<const int*>(buffer.owner.get()); }

void run_ranks(std::vector<std::unique_ptr<Transport>>& transports,
               const std::function<void(Transport&)>& body) {
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&body, &transport] { body(*transport); });
  }
  for (auto& thread : threads) thread.join();
}

TEST(LocalTransport, HandsOverTheSendersBufferWithoutCopy) {
  auto ranks = make_local_transports(2);
  const Buffer sent = number(7);
  ranks[0]->post_send(1, {Direction::kForward, 0, 3, 0}, sent);
  const auto ticket = ranks[1]->post_receive(0, {Direction::kForward, 0, 3, 0}, {});
  EXPECT_EQ(ranks[1]->wait_receive(ticket).data, sent.data);
}

TEST(LocalTransport, KeepsTheOrderOfAChannelAndTakesOutOfOrderWaits) {
  auto ranks = make_local_transports(2);
  for (int i = 0; i < 4; ++i) ranks[0]->post_send(1, {Direction::kForward, 0, i, 0}, number(i));
  std::vector<Transport::Ticket> tickets;
  for (int i = 0; i < 4; ++i) {
    tickets.push_back(ranks[1]->post_receive(0, {Direction::kForward, 0, i, 0}, {}));
  }
  for (const int i : {2, 0, 3, 1}) {
    EXPECT_EQ(value_of(ranks[1]->wait_receive(tickets[static_cast<std::size_t>(i)])), i);
  }
}

TEST(LocalTransport, RefusesAMessageThatIsNotTheAnnouncedOne) {
  auto ranks = make_local_transports(2);
  ranks[0]->post_send(1, {Direction::kForward, 0, 1, 0}, number(1));
  const auto ticket = ranks[1]->post_receive(0, {Direction::kForward, 0, 2, 0}, {});
  EXPECT_THROW(ranks[1]->wait_receive(ticket), InternalError);
}

TEST(LocalTransport, DirectionsAndPeersDoNotWaitForEachOther) {
  auto ranks = make_local_transports(3);
  ranks[0]->post_send(1, {Direction::kForward, 0, 0, 0}, number(1));
  ranks[2]->post_send(1, {Direction::kForward, 2, 0, 0}, number(2));
  ranks[0]->post_send(1, {Direction::kBackward, 0, 0, 0}, number(3));
  EXPECT_EQ(value_of(ranks[1]->wait_receive(
                ranks[1]->post_receive(0, {Direction::kBackward, 0, 0, 0}, {}))),
            3);
  EXPECT_EQ(value_of(ranks[1]->wait_receive(
                ranks[1]->post_receive(2, {Direction::kForward, 2, 0, 0}, {}))),
            2);
}

TEST(LocalTransport, NamesRankPeerAndMessageWhenTheTimeLimitPasses) {
  auto ranks = make_local_transports(2, {.timeout = milliseconds(20)});
  const auto ticket = ranks[1]->post_receive(0, {Direction::kBackward, 5, 6, 0}, {});
  try {
    ranks[1]->wait_receive(ticket);
    FAIL() << "nothing was sent";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 1 waited for the receive of gradients of stage 5, microbatch 6"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("from rank 0"), std::string::npos) << text;
  }
}

TEST(LocalTransport, FirstAbortReasonReachesEveryWaitingRank) {
  auto ranks = make_local_transports(4);
  std::atomic<int> num_told = 0;
  run_ranks(ranks, [&](Transport& transport) {
    if (transport.rank() == 3) {
      transport.abort("rank 3 ran out of memory");
      transport.abort("a later reason");
      return;
    }
    try {
      if (transport.rank() == 0) {
        transport.barrier();
      } else {
        transport.wait_receive(transport.post_receive(0, {Direction::kForward, 0, 0, 0}, {}));
      }
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "rank 3 ran out of memory");
      ++num_told;
    }
  });
  EXPECT_EQ(num_told, 3);
}

TEST(LocalTransport, RendezvousSendEndsOnlyOnceTheReceiveIsPosted) {
  auto ranks = make_local_transports(2, {.timeout = milliseconds(30), .rendezvous = true});
  EXPECT_THROW(ranks[0]->wait_send(ranks[0]->post_send(1, {}, number(0))), CommError);
  auto others = make_local_transports(2, {.rendezvous = true});
  run_ranks(others, [&](Transport& transport) {
    if (transport.rank() == 0) {
      transport.wait_send(transport.post_send(1, {}, number(0)));
    } else {
      transport.wait_receive(transport.post_receive(0, {}, {}));
    }
  });
}

TEST(LocalTransport, AllGatherReturnsEveryContributionByRank) {
  auto ranks = make_local_transports(5);
  run_ranks(ranks, [&](Transport& transport) {
    for (int round = 0; round < 200; ++round) {
      const std::vector<double> mine(static_cast<std::size_t>(transport.rank()), round);
      const auto all = transport.all_gather(mine);
      ASSERT_EQ(all.size(), 5u);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        EXPECT_EQ(all[rank], std::vector<double>(rank, round));
      }
    }
  });
}

TEST(LocalTransport, ManyMessagesInBothDirectionsArriveInOrder) {
  auto ranks = make_local_transports(4, {.rendezvous = true});
  constexpr int kRounds = 500;
  run_ranks(ranks, [&](Transport& transport) {
    const int next = (transport.rank() + 1) % 4;
    const int previous = (transport.rank() + 3) % 4;
    for (int i = 0; i < kRounds; ++i) {
      const auto send = transport.post_send(next, {Direction::kForward, 0, i, 0}, number(i));
      const auto back = transport.post_send(previous, {Direction::kBackward, 0, i, 0}, number(-i));
      const auto receive = transport.post_receive(previous, {Direction::kForward, 0, i, 0}, {});
      const auto receive_back = transport.post_receive(next, {Direction::kBackward, 0, i, 0}, {});
      EXPECT_EQ(value_of(transport.wait_receive(receive)), i);
      EXPECT_EQ(value_of(transport.wait_receive(receive_back)), -i);
      transport.wait_send(send);
      transport.wait_send(back);
    }
  });
}

}  // namespace
}  // namespace sluice
