#include "sluice/comm/transport_cases_for_tests.h"

#include <cstring>
#include <memory>
#include <ostream>

#include "sluice/comm/agree.h"
#include "sluice/common/errors.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

MessageTag forward(int microbatch) { return {Direction::kForward, 0, microbatch, 0}; }
MessageTag backward(int microbatch) { return {Direction::kBackward, 1, microbatch, 0}; }

/// Room for `num_bytes`, or the bytes of `values`.
Buffer room(std::size_t num_bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(num_bytes);
  return {owner, owner->data(), num_bytes};
}

Buffer number(int value) {
  Buffer buffer = room(sizeof(int));
  std::memcpy(buffer.data, &value, sizeof(int));
  return buffer;
}

int value_of(const Buffer& buffer) {
  int value = 0;
  std::memcpy(&value, buffer.data, sizeof(int));
  return value;
}

Transport::Ticket post_receive(Transport& transport, int peer, const MessageTag& tag,
                               std::size_t num_bytes = sizeof(int)) {
  return transport.post_receive(peer, tag, transport.copies() ? room(num_bytes) : Buffer{});
}

int receive(Transport& transport, int peer, const MessageTag& tag) {
  return value_of(transport.wait_receive(post_receive(transport, peer, tag)));
}

void send(Transport& transport, int peer, const MessageTag& tag, int value) {
  transport.wait_send(transport.post_send(peer, tag, number(value)));
}

int next(const Transport& transport) { return (transport.rank() + 1) % transport.size(); }
int previous(const Transport& transport) {
  return (transport.rank() + transport.size() - 1) % transport.size();
}

void keeps_the_order_of_a_channel_and_takes_out_of_order_waits(Transport& transport) {
  std::vector<Transport::Ticket> tickets;
  if (transport.rank() == 0) {
    for (int i = 0; i < 4; ++i) tickets.push_back(transport.post_send(1, forward(i), number(i)));
    for (const auto ticket : tickets) transport.wait_send(ticket);
  } else if (transport.rank() == 1) {
    for (int i = 0; i < 4; ++i) tickets.push_back(post_receive(transport, 0, forward(i)));
    for (const int i : {2, 0, 3, 1}) {
      EXPECT_EQ(value_of(transport.wait_receive(tickets[static_cast<std::size_t>(i)])), i);
    }
  }
}

void refuses_a_message_that_is_not_the_announced_one(Transport& transport) {
  if (transport.rank() == 0) {
    send(transport, 1, forward(1), 1);
  } else if (transport.rank() == 1) {
    EXPECT_THROW(receive(transport, 0, forward(2)), InternalError);
  }
}

void directions_and_peers_do_not_wait_for_each_other(Transport& transport) {
  if (transport.rank() == 1) {
    EXPECT_EQ(receive(transport, 0, backward(0)), 3);
    EXPECT_EQ(receive(transport, 2, forward(0)), 2);
    EXPECT_EQ(receive(transport, 0, forward(0)), 1);
  } else if (transport.rank() == 2) {
    send(transport, 1, forward(0), 2);
  } else if (transport.rank() == 0) {
    const auto first = transport.post_send(1, forward(0), number(1));
    send(transport, 1, backward(0), 3);
    transport.wait_send(first);
  }
}

void names_rank_peer_message_and_last_action_when_the_time_limit_passes(Transport& transport) {
  if (transport.rank() != 1) return;
  transport.note_done("4F7");
  try {
    receive(transport, 0, {Direction::kBackward, 5, 6, 0});
    FAIL() << "nothing was sent";
  } catch (const CommError& error) {
    const std::string text = error.what();
    for (const char* words : {"rank 1 waited for the receive of gradients of stage 5, microbatch 6",
                              "from rank 0", "run.timeout_seconds", "(last done: 4F7)"}) {
      EXPECT_NE(text.find(words), std::string::npos) << text;
    }
  }
}

void first_abort_reason_reaches_every_waiting_rank(Transport& transport) {
  const int last = transport.size() - 1;
  if (transport.rank() == last) {
    transport.abort("the last rank ran out of memory");
    transport.abort("a later reason");
  }
  try {
    if (transport.rank() == 0) {
      transport.barrier();
    } else {
      receive(transport, 0, forward(0));
    }
    FAIL() << "the abort did not arrive";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the last rank ran out of memory"), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("rank {}", transport.rank())), std::string::npos) << text;
  }
  EXPECT_THROW(transport.barrier(), CommError);
}

void rendezvous_send_does_not_end_before_its_receive(Transport& transport) {
  if (transport.rank() != 0) return;
  const auto ticket = transport.post_send(1, forward(0), number(0));
  EXPECT_FALSE(transport.is_sent(ticket));
  EXPECT_THROW(transport.wait_send(ticket), CommError);
}

void all_gather_returns_every_contribution_by_rank(Transport& transport) {
  for (int round = 0; round < 200; ++round) {
    const std::vector<double> mine(static_cast<std::size_t>(transport.rank()), round);
    const auto all = transport.all_gather(mine);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(transport.size()));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      ASSERT_EQ(all[rank], std::vector<double>(rank, round));
    }
  }
}

void many_messages_around_the_ring_arrive_in_order(Transport& transport) {
  for (int i = 0; i < 500; ++i) {
    const auto send = transport.post_send(next(transport), forward(i), number(i));
    const auto back = transport.post_send(previous(transport), backward(i), number(-i));
    ASSERT_EQ(receive(transport, previous(transport), forward(i)), i);
    ASSERT_EQ(receive(transport, next(transport), backward(i)), -i);
    transport.wait_send(send);
    transport.wait_send(back);
  }
}

void thousands_of_small_messages_may_be_on_their_way(Transport& transport) {
  constexpr int kMessages = 5000;
  std::vector<Transport::Ticket> sends;
  std::vector<Transport::Ticket> receives;
  for (int i = 0; i < kMessages; ++i) {
    sends.push_back(transport.post_send(next(transport), forward(i), number(i)));
  }
  for (int i = 0; i < kMessages; ++i) {
    receives.push_back(post_receive(transport, previous(transport), forward(i)));
  }
  for (int i = kMessages - 1; i >= 0; --i) {
    ASSERT_EQ(value_of(transport.wait_receive(receives[static_cast<std::size_t>(i)])), i);
  }
  transport.barrier();  // the peer has them all
  for (const auto ticket : sends) {
    while (!transport.is_sent(ticket)) {  // its end may still be on the way
    }
    transport.wait_send(ticket);
  }
}

void messages_of_64_mib_cross_each_other(Transport& transport) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  if (transport.rank() > 1) return;  // two are enough for the memory of a small machine
  const int peer = 1 - transport.rank();
  Buffer mine = room(kBytes);
  std::memset(mine.data, transport.rank() + 1, kBytes);
  const auto sent = transport.post_send(peer, forward(0), mine);
  const Buffer got = transport.wait_receive(post_receive(transport, peer, forward(0), kBytes));
  transport.wait_send(sent);
  ASSERT_EQ(got.num_bytes, kBytes);
  const std::vector<std::byte> wanted(kBytes, static_cast<std::byte>(peer + 1));
  EXPECT_EQ(std::memcmp(got.data, wanted.data(), kBytes), 0);
}

void empty_messages_arrive(Transport& transport) {
  if (transport.rank() == 0) transport.wait_send(transport.post_send(1, forward(0), {}));
  if (transport.rank() != 1) return;
  EXPECT_EQ(transport.wait_receive(transport.post_receive(0, forward(0), {})).num_bytes, 0u);
}

void splits_have_messages_and_collectives_of_their_own(Transport& transport) {
  // Even and odd ranks; a message of the whole is on its way meanwhile.
  const auto whole = transport.post_send(next(transport), forward(0), number(100));
  const auto group = transport.split(transport.rank() % 2);
  const auto all = group->all_gather(std::vector{static_cast<double>(transport.rank())});
  ASSERT_EQ(group->size(), (transport.size() + 1 - transport.rank() % 2) / 2);
  ASSERT_EQ(group->rank(), transport.rank() / 2);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i][0], static_cast<double>(2 * static_cast<int>(i) + transport.rank() % 2));
  }
  group->open(every_channel(group->size()));
  if (group->size() > 1) {
    const auto inner = group->post_send(next(*group), forward(0), number(group->rank()));
    EXPECT_EQ(receive(*group, previous(*group), forward(0)), previous(*group));
    group->wait_send(inner);
  }
  EXPECT_EQ(receive(transport, previous(transport), forward(0)), 100);
  transport.wait_send(whole);
}

void an_abort_of_a_part_reaches_the_whole(Transport& transport) {
  if (transport.rank() == 0) {
    transport.split(1)->abort("part 1 is lost");
    return;
  }
  EXPECT_THROW(
      {
        const auto group = transport.split(0);
        receive(transport, 0, forward(0));
      },
      CommError);
  EXPECT_THROW(transport.barrier(), CommError);
}

void texts_and_errors_reach_all_ranks(Transport& transport) {
  const std::string mine(static_cast<std::size_t>(7 * transport.rank()), 'x');
  const auto texts = gather_texts(transport, mine + "\xff\n");
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    EXPECT_EQ(texts[rank], std::string(7 * rank, 'x') + "\xff\n");
  }
  agree(transport, nullptr);
  try {
    agree(transport, transport.rank() == 1
                         ? std::make_exception_ptr(InvalidArgument("this cannot work"))
                         : nullptr);
    FAIL() << "the error of rank 1 is not known";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 transport.rank() == 1 ? "this cannot work" : "rank 1: this cannot work");
  }
}

/// The receiver makes no call of the transport between the post and the arrival.
void a_posted_receive_completes_while_the_rank_computes(Transport& transport) {
  if (!transport.copies()) return;  // owners are handed over: nothing arrives in a destination
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  if (transport.rank() == 0) {
    Buffer mine = room(kBytes);
    std::memset(mine.data, 1, kBytes);
    const auto sent = transport.post_send(1, forward(0), mine);
    transport.barrier();
    transport.wait_send(sent);
    return;
  }
  if (transport.rank() > 1) return transport.barrier();
  Buffer destination = room(kBytes);
  const auto ticket = transport.post_receive(0, forward(0), destination);
  transport.barrier();  // both ends are posted
  const volatile std::byte& last = destination.data[kBytes - 1];
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (last == std::byte{0} && std::chrono::steady_clock::now() < limit) {
  }
  EXPECT_TRUE(last == std::byte{1}) << "nothing moved while the rank computed";
  transport.wait_receive(ticket);
}

}  // namespace

void PrintTo(const TransportCase& one, std::ostream* out) { *out << one.name; }

const std::vector<TransportCase>& transport_cases() {
  static const std::vector<TransportCase> cases = {
      {.name = "KeepsTheOrderOfAChannelAndTakesOutOfOrderWaits",
       .body = keeps_the_order_of_a_channel_and_takes_out_of_order_waits},
      {.name = "RefusesAMessageThatIsNotTheAnnouncedOne",
       .body = refuses_a_message_that_is_not_the_announced_one},
      {.name = "DirectionsAndPeersDoNotWaitForEachOther",
       .min_ranks = 3,
       .body = directions_and_peers_do_not_wait_for_each_other},
      {.name = "NamesRankPeerMessageAndLastActionWhenTheTimeLimitPasses",
       .timeout = milliseconds(40),
       .body = names_rank_peer_message_and_last_action_when_the_time_limit_passes},
      {.name = "FirstAbortReasonReachesEveryWaitingRank",
       .body = first_abort_reason_reaches_every_waiting_rank},
      {.name = "RendezvousSendDoesNotEndBeforeItsReceive",
       .timeout = milliseconds(40),
       .rendezvous = true,
       .body = rendezvous_send_does_not_end_before_its_receive},
      {.name = "AllGatherReturnsEveryContributionByRank",
       .body = all_gather_returns_every_contribution_by_rank},
      {.name = "ManyMessagesAroundTheRingArriveInOrder",
       .rendezvous = true,
       .body = many_messages_around_the_ring_arrive_in_order},
      {.name = "ThousandsOfSmallMessagesMayBeOnTheirWay",
       .body = thousands_of_small_messages_may_be_on_their_way},
      {.name = "ThousandsOfUnbufferedMessagesMayBeOnTheirWay",
       .rendezvous = true,
       .body = thousands_of_small_messages_may_be_on_their_way},
      {.name = "MessagesOf64MiBCrossEachOther", .body = messages_of_64_mib_cross_each_other},
      {.name = "EmptyMessagesArrive", .body = empty_messages_arrive},
      {.name = "SplitsHaveMessagesAndCollectivesOfTheirOwn",
       .body = splits_have_messages_and_collectives_of_their_own},
      {.name = "AnAbortOfAPartReachesTheWhole", .body = an_abort_of_a_part_reaches_the_whole},
      {.name = "TextsAndErrorsReachAllRanks", .body = texts_and_errors_reach_all_ranks},
      {.name = "APostedReceiveCompletesWhileTheRankComputes",
       .body = a_posted_receive_completes_while_the_rank_computes},
  };
  return cases;
}

}  // namespace sluice
