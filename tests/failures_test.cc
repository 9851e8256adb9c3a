// A rank thread that dies or hangs at any moment ends the run within the time limit with a line
// that says what was waited for, and the resumed run has the bits of one that was never broken.
// SLUICE_FAILURE_RUNS says how many random moments are tried.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/comm/local.h"
#include "sluice/common/errors.h"
#include "sluice/train/trainer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{500};  // where a rank hangs

/// Where a rank fails: at its call number `at` of any transport. 0: never.
struct Fault {
  std::int64_t at = 0;
  bool hangs = false;  // else dies
  std::int64_t calls = 0;
};

/// A rank's transport, and what is split from it, with a fault.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Fault> fault)
      : Transport(inner.get()), inner_(std::move(inner)), fault_(std::move(fault)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool copies() const override { return inner_->copies(); }
  Ticket post_send(int peer, const MessageTag& tag, Buffer buffer) override {
    call();
    return inner_->post_send(peer, tag, std::move(buffer));
  }
  Ticket post_receive(int peer, const MessageTag& tag, Buffer destination) override {
    call();
    return inner_->post_receive(peer, tag, std::move(destination));
  }
  Buffer wait_receive(Ticket ticket) override {
    call();
    return inner_->wait_receive(ticket);
  }
  void wait_send(Ticket ticket) override { inner_->wait_send(ticket); }
  bool is_sent(Ticket ticket) override { return inner_->is_sent(ticket); }
  std::vector<std::vector<double>> all_gather(std::span<const double> mine) override {
    call();
    return inner_->all_gather(mine);
  }
  void barrier() override {
    call();
    inner_->barrier();
  }
  std::unique_ptr<Transport> split(int color) override {
    call();
    return std::make_unique<FaultyTransport>(inner_->split(color), fault_);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  void call() {
    if (++fault_->calls != fault_->at) return;
    if (!fault_->hangs) throw CommError("this rank is gone");
    std::this_thread::sleep_for(2 * kTimeout);
  }

  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<Fault> fault_;
};

class Failures : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / fmt::format("sluice_failures_{}", getpid());
    fs::remove_all(root_);
    fs::create_directories(root_ / "corpus");
    std::ofstream out(root_ / "corpus" / "text.txt");
    for (int line = 0; line < 300; ++line) out << "line " << line << " of the corpus\n";
  }
  void TearDown() override { fs::remove_all(root_); }

  RunConfig config(const std::string& run) const {
    return parse_config(R"(
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
[data]
sequence_length = 16
validation_fraction = 0.2
[pipeline]
schedule = "zb-1p"
ranks = 2
microbatches = 4
microbatch_size = 1
[parallel]
data = 2
[train]
steps = 6
warmup_steps = 2
eval_every = 3
checkpoint_every = 2
)",
                        "test",
                        {fmt::format("run.dir=\"{}\"", (root_ / run).string()),
                         fmt::format("data.paths=[\"{}\"]", (root_ / "corpus").string())});
  }

  /// Trains with a fault of one rank. Returns the error, or nothing.
  std::string train(const std::string& run, std::size_t rank, const std::shared_ptr<Fault>& fault) {
    auto world =
        make_local_transports(4, {.timeout = fault->hangs ? kTimeout : std::chrono::minutes(1)});
    world[rank] = std::make_unique<FaultyTransport>(std::move(world[rank]), fault);
    try {
      Trainer(config(run), /*resume=*/false, std::move(world)).run({});
    } catch (const CommError& error) {
      return error.what();
    }
    return "";
  }

  std::string file(const std::string& run, const std::string& name) const {
    std::ifstream in(root_ / run / "checkpoints" / "step-6" / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path root_;
};

TEST_F(Failures, OfAnyRankAtAnyMomentEndTheRunAndLoseNothingThatWasSaved) {
  const char* wanted = std::getenv("SLUICE_FAILURE_RUNS");
  const int num_runs = wanted == nullptr ? 4 : std::atoi(wanted);
  std::vector<std::int64_t> calls;  // of every rank in a whole run
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const auto none = std::make_shared<Fault>();
    fs::remove_all(root_ / "whole");
    ASSERT_EQ(train("whole", rank, none), "");
    calls.push_back(none->calls);
  }
  const std::string weights = file("whole", "model.safetensors");
  const std::string state = file("whole", "optimizer.safetensors");
  ASSERT_FALSE(weights.empty());
  std::mt19937 choose(3);
  for (int run = 0; run < num_runs; ++run) {
    const std::size_t rank = choose() % 4;
    const auto fault = std::make_shared<Fault>();
    fault->hangs = run % 2 == 0;
    fault->at = 1 + static_cast<std::int64_t>(choose() % static_cast<std::uint32_t>(calls[rank]));
    SCOPED_TRACE(fmt::format("run {}: rank {} {} at call {} of {}", run, rank,
                             fault->hangs ? "hangs" : "dies", fault->at, calls[rank]));
    fs::remove_all(root_ / "broken");
    const std::string error = train("broken", rank, fault);
    if (fault->hangs) {
      EXPECT_NE(error.find("waited for"), std::string::npos) << error;
      EXPECT_NE(error.find("run.timeout_seconds"), std::string::npos) << error;
    } else {
      EXPECT_EQ(error, "this rank is gone");
    }
    Trainer(config("broken"), /*resume=*/true).run({});
    EXPECT_TRUE(file("broken", "model.safetensors") == weights) << "other weights";
    EXPECT_TRUE(file("broken", "optimizer.safetensors") == state) << "other optimizer state";
  }
}

}  // namespace
}  // namespace sluice
