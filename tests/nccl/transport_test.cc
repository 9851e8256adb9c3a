// The NCCL transport with ranks as threads, over the stand-in for NCCL (fake_nccl.cc): order of
// calls, channels, failures. No GPU takes part.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sluice/comm/memory_store_for_tests.h"
#include "sluice/comm/nccl.h"
#include "sluice/comm/transport_cases_for_tests.h"
#include "sluice/common/errors.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

template <typename Function>
Function* fake(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen(FAKE_NCCL, RTLD_NOW), name));
}
int violations() { return fake<int()>("fake_nccl_violations")(); }
int live_comms() { return fake<int()>("fake_nccl_live_comms")(); }
void inject(const char* what, int after) {
  fake<void(const char*, int)>("fake_nccl_inject")(what, after);
}

NcclDevice stand_in(int index) {
  NcclDevice device{.nccl = load_nccl(FAKE_NCCL), .cuda = load_cuda(FAKE_NCCL), .index = index};
  device.name = device_name(*device.cuda, index);
  return device;
}

struct World {
  int ranks = 2;
  milliseconds timeout{60000};
  std::function<void(const std::string&)> last_word;
  MemoryStore store;

  /// Runs `body` for every rank on a thread of its own. No rank ends before all have.
  void run(const std::function<void(Transport&)>& body, bool open = true) {
    std::barrier gate(ranks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto transport = connect_nccl(store.another(),
                                            {.rank = rank,
                                             .size = ranks,
                                             .prefix = "test/",
                                             .timeout = timeout,
                                             .last_word = last_word},
                                            stand_in(rank));
        if (open) transport->open(every_channel(ranks));
        gate.arrive_and_wait();
        body(*transport);
        gate.arrive_and_wait();
      });
    }
  }
};

MessageTag forward(int microbatch) { return {Direction::kForward, 0, microbatch, 0}; }

Buffer room(std::size_t num_bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(num_bytes);
  return {owner, owner->data(), num_bytes};
}

/// Nothing was used wrongly, and nothing is left.
class NcclTransport : public ::testing::Test {
 protected:
  void SetUp() override {
    violations_ = violations();
    comms_ = live_comms();
  }
  void TearDown() override {
    inject("", 0);
    EXPECT_EQ(violations(), violations_);
    EXPECT_EQ(live_comms(), comms_);
  }

 private:
  int violations_ = 0;
  int comms_ = 0;
};

class NcclTransportCases : public NcclTransport,
                           public ::testing::WithParamInterface<std::tuple<int, TransportCase>> {};

TEST_P(NcclTransportCases, Does) {
  const auto& [ranks, one] = GetParam();
  if (ranks < one.min_ranks) return;
  // Long enough to open all channels on a busy machine.
  World world{.ranks = ranks, .timeout = std::max(one.timeout, milliseconds(1500))};
  world.run([&](Transport& transport) { one.body(transport); });
}

INSTANTIATE_TEST_SUITE_P(Cases, NcclTransportCases,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::ValuesIn(transport_cases())),
                         [](const auto& test) {
                           return fmt::format("{}With{}Ranks", std::get<1>(test.param).name,
                                              std::get<0>(test.param));
                         });

TEST_F(NcclTransport, OpensOneCommunicatorPerChannelWhateverTheOrderOfTheList) {
  World world{.ranks = 4};
  const int before = live_comms();
  world.run(
      [&](Transport& transport) {
        std::vector<Channel> channels = every_channel(4);
        if (transport.rank() % 2 == 1) std::reverse(channels.begin(), channels.end());
        transport.open(channels);
        transport.open(channels);  // open ones stay so
        // Every channel has two ends here: 4 x 3 pairs, 4 directions.
        EXPECT_EQ(live_comms() - before, 2 * 4 * 3 * kNumDirections);
        transport.barrier();
      },
      /*open=*/false);
}

TEST_F(NcclTransport, RefusesMessagesOnChannelsThatAreNotOpen) {
  World world;
  world.run(
      [](Transport& transport) {
        transport.open({{0, 1, Direction::kForward}});
        if (transport.rank() == 1) {
          EXPECT_THROW(transport.post_send(0, forward(0), room(4)), InternalError);
        }
      },
      /*open=*/false);
}

TEST_F(NcclTransport, CollectivesNeedNoDevice) {
  MemoryStore store;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport =
          connect_nccl(store.another(), {.rank = rank, .size = 3, .prefix = "start/"});
      const auto all = transport->all_gather(std::vector{1.0 * rank});
      EXPECT_EQ(all, (std::vector<std::vector<double>>{{0.0}, {1.0}, {2.0}}));
      EXPECT_THROW(transport->open({{0, 1, Direction::kForward}}), InternalError);
      transport->barrier();
    });
  }
}

TEST_F(NcclTransport, CollectivesLeaveNothingInTheStore) {
  World world{.ranks = 3};
  std::size_t after_one = 0;
  world.run([&](Transport& transport) {
    for (int round = 0; round < 50; ++round) {
      transport.barrier();
      if (transport.rank() == 0 && round == 0) after_one = world.store.num_values();
    }
    transport.barrier();
    if (transport.rank() != 0) return;
    EXPECT_LE(world.store.num_values(), after_one + 4);
  });
}

/// What every rank throws when `body` runs on it.
std::vector<std::string> errors_of(World& world, const std::function<void(Transport&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world.ranks));
  world.run([&](Transport& transport) {
    try {
      body(transport);
    } catch (const CommError& error) {
      transport.abort(error.what());
      errors[static_cast<std::size_t>(transport.rank())] = error.what();
    }
  });
  return errors;
}

void send_for_ever(Transport& transport) {
  for (int i = 0;; ++i) {
    if (transport.rank() == 0) {
      transport.wait_send(transport.post_send(1, forward(i), room(8)));
    } else if (transport.rank() == 1) {
      transport.wait_receive(transport.post_receive(0, forward(i), room(8)));
    } else {
      std::this_thread::sleep_for(milliseconds(5));
      transport.barrier();
    }
    transport.note_done(fmt::format("0F{}", i));
  }
}

TEST_F(NcclTransport, AMessageThatHangsIsNamedByBothEndsAndTheOthersHearOfIt) {
  World world{.ranks = 3, .timeout = milliseconds(1500)};
  inject("hang", 600);
  const auto errors = errors_of(world, send_for_ever);
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("run.timeout_seconds"), std::string::npos) << error;
  }
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_NE(errors[rank].find("activations of stage 0, microbatch"), std::string::npos)
        << errors[rank];
    EXPECT_NE(errors[rank].find("(last done: 0F"), std::string::npos) << errors[rank];
  }
}

TEST_F(NcclTransport, AnErrorThatNcclReportsEndsAllRanksBeforeTheTimeLimit) {
  World world{.ranks = 3};
  inject("error", 600);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_of(world, send_for_ever);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(30000));
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("NCCL reports: remote process exited"), std::string::npos) << error;
  }
}

TEST_F(NcclTransport, AStoreThatIsGoneEndsAllRanks) {
  World world{.ranks = 2};
  const auto errors = errors_of(world, [&](Transport& transport) {
    if (transport.rank() == 0) world.store.shut_down();
    transport.wait_receive(transport.post_receive(1 - transport.rank(), forward(0), room(4)));
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("the store does not answer"), std::string::npos) << error;
  }
}

TEST_F(NcclTransport, TheLastWordIsSpokenForARankThatComputes) {
  World world;
  std::mutex mutex;
  std::string word;
  world.last_word = [&](const std::string& report) {
    const std::lock_guard lock(mutex);
    word = report;
  };
  world.run([&](Transport& transport) {
    if (transport.rank() == 1) return transport.abort("rank 1 has run out of memory");
    transport.note_done("2F3");
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < limit) {
      const std::lock_guard lock(mutex);
      if (!word.empty()) break;
    }
  });
  EXPECT_EQ(word, "rank 0 was computing (last done: 2F3): rank 1 has run out of memory");
}

TEST_F(NcclTransport, TwoRanksOnOneGpuAreNamedOnAllRanks) {
  World world{.ranks = 3};
  world.run([](Transport& transport) {
    check_devices(transport, fmt::format("gpu {}", transport.rank()));
    try {
      check_devices(transport, transport.rank() == 1 ? "gpu 1" : "gpu 0");
      FAIL() << "ranks 0 and 2 have one GPU";
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("ranks 0 and 2 are both on GPU gpu 0"));
    }
  });
}

TEST(NcclLibrary, SaysInOneLineWhatIsMissing) {
  for (const auto& [library, words] : {std::pair{"/nowhere/libnccl.so.2", "/nowhere/libnccl.so.2"},
                                       std::pair{"libm.so.6", "has no function ncclGetVersion"}}) {
    try {
      load_nccl(library);
      FAIL() << library;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(words), std::string::npos) << text;
      EXPECT_NE(text.find("SLUICE_NCCL_LIBRARY"), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    }
  }
  EXPECT_THROW(load_cuda("libm.so.6"), InvalidArgument);
  EXPECT_EQ(load_nccl(FAKE_NCCL)->version(), "2.27.3");
}

}  // namespace
}  // namespace sluice
