#include "sluice/comm/local.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct Message {
  MessageTag tag;
  Buffer buffer;
};

/// Messages of one (source, destination, direction), in order.
struct Channel {
  std::deque<Message> queue;     // posted and not yet taken
  std::uint64_t num_sent = 0;    // tickets of the channel count from 1
  std::uint64_t num_taken = 0;   // messages handed over
  std::uint64_t num_posted = 0;  // receives announced
};

/// What all ranks share. Everything is guarded by `mutex`; each rank sleeps on its own condition
/// variable, so that a message wakes the one rank it is for.
struct Shared {
  explicit Shared(int ranks, const LocalOptions& local_options)
      : num_ranks(ranks),
        options(local_options),
        wake(static_cast<std::size_t>(ranks)),
        channels(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks) * 2),
        contributions(static_cast<std::size_t>(ranks)) {}

  Channel& channel(int source, int destination, Direction direction) {
    const auto index = (static_cast<std::size_t>(source) * static_cast<std::size_t>(num_ranks) +
                        static_cast<std::size_t>(destination)) *
                           2 +
                       static_cast<std::size_t>(direction);
    return channels[index];
  }

  const int num_ranks;
  const LocalOptions options;
  std::mutex mutex;
  std::vector<std::condition_variable> wake;
  std::vector<Channel> channels;
  std::optional<std::string> abort_reason;
  // all_gather: a generation ends when all ranks have contributed.
  std::vector<std::vector<double>> contributions;
  int num_contributed = 0;
  std::uint64_t generation = 0;
  std::shared_ptr<const std::vector<std::vector<double>>> gathered;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return shared_->num_ranks; }
  bool copies() const override { return false; }

  Ticket post_send(int peer, const MessageTag& tag, Buffer buffer) override {
    check_peer(peer);
    std::unique_lock lock(shared_->mutex);
    throw_if_aborted();
    Channel& channel = shared_->channel(rank_, peer, tag.direction);
    channel.queue.push_back({tag, std::move(buffer)});
    ++channel.num_sent;
    operations_.push_back({peer, tag, channel.num_sent});
    shared_->wake[static_cast<std::size_t>(peer)].notify_one();
    return operations_.size();
  }

  Ticket post_receive(int peer, const MessageTag& tag, Buffer /*destination*/) override {
    check_peer(peer);
    std::unique_lock lock(shared_->mutex);
    throw_if_aborted();
    Channel& channel = shared_->channel(peer, rank_, tag.direction);
    ++channel.num_posted;
    operations_.push_back({peer, tag, channel.num_posted});
    if (shared_->options.rendezvous) shared_->wake[static_cast<std::size_t>(peer)].notify_one();
    return operations_.size();
  }

  Buffer wait_receive(Ticket ticket) override {
    const Operation operation = take(ticket);
    std::unique_lock lock(shared_->mutex);
    Channel& channel = shared_->channel(operation.peer, rank_, operation.tag.direction);
    wait(lock, operation, "receive", [&] { return arrived(channel, operation.sequence); });
    // Receives of a channel may be waited for out of order; the queue keeps what is still to come.
    const auto position = static_cast<std::size_t>(operation.sequence - channel.num_taken - 1);
    Message message = std::move(channel.queue[position]);
    if (position == 0) {
      channel.queue.pop_front();
      ++channel.num_taken;
      while (!channel.queue.empty() && taken_early(channel.queue.front())) {
        channel.queue.pop_front();
        ++channel.num_taken;
      }
    } else {
      channel.queue[position].tag.stage = kTaken;
    }
    SLUICE_CHECK(message.tag == operation.tag, "rank {} expected {} from rank {} and got {}", rank_,
                 to_string(operation.tag), operation.peer, to_string(message.tag));
    return std::move(message.buffer);
  }

  void wait_send(Ticket ticket) override {
    const Operation operation = take(ticket);
    if (!shared_->options.rendezvous) return;  // the owner went with the message
    std::unique_lock lock(shared_->mutex);
    Channel& channel = shared_->channel(rank_, operation.peer, operation.tag.direction);
    wait(lock, operation, "send", [&] { return channel.num_posted >= operation.sequence; });
  }

  std::vector<std::vector<double>> all_gather(std::span<const double> mine) override {
    std::unique_lock lock(shared_->mutex);
    throw_if_aborted();
    const std::uint64_t generation = shared_->generation;
    shared_->contributions[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    if (++shared_->num_contributed == shared_->num_ranks) {
      shared_->gathered =
          std::make_shared<const std::vector<std::vector<double>>>(shared_->contributions);
      shared_->num_contributed = 0;
      ++shared_->generation;
      for (auto& condition : shared_->wake) condition.notify_one();
    } else {
      wait_until(
          lock, [&] { return shared_->generation != generation; },
          [&] { return fmt::format("rank {} waited for the other ranks in a collective", rank_); });
    }
    // A later generation cannot end before this rank joins it, so `gathered` is still ours.
    return *shared_->gathered;
  }

  void barrier() override { all_gather({}); }

  void abort(const std::string& reason) override {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->abort_reason) shared_->abort_reason = reason;
    for (auto& condition : shared_->wake) condition.notify_all();
  }

 private:
  static constexpr std::int32_t kTaken = -1;  // marks a message that was taken out of order

  struct Operation {
    int peer = -1;
    MessageTag tag;
    std::uint64_t sequence = 0;  // on its channel
  };

  static bool taken_early(const Message& message) { return message.tag.stage == kTaken; }

  bool arrived(const Channel& channel, std::uint64_t sequence) const {
    return channel.num_sent >= sequence;
  }

  void check_peer(int peer) const {
    SLUICE_CHECK(peer >= 0 && peer < shared_->num_ranks && peer != rank_,
                 "rank {} has no channel to rank {}", rank_, peer);
  }

  Operation take(Ticket ticket) {
    SLUICE_CHECK(ticket >= 1 && ticket <= operations_.size(), "unknown ticket {}", ticket);
    Operation operation = operations_[ticket - 1];
    SLUICE_CHECK(operation.peer >= 0, "ticket {} was waited for twice", ticket);
    operations_[ticket - 1].peer = -1;
    if (++num_finished_ == operations_.size()) {  // all done: tickets start over
      operations_.clear();
      num_finished_ = 0;
    }
    return operation;
  }

  void throw_if_aborted() const {
    if (shared_->abort_reason) throw CommError(*shared_->abort_reason);
  }

  template <typename Done>
  void wait(std::unique_lock<std::mutex>& lock, const Operation& operation, const char* what,
            Done done) {
    wait_until(lock, done, [&] {
      return fmt::format("rank {} waited for the {} of {} {} rank {}", rank_, what,
                         to_string(operation.tag), what[0] == 's' ? "to" : "from", operation.peer);
    });
  }

  template <typename Done, typename Describe>
  void wait_until(std::unique_lock<std::mutex>& lock, Done done, Describe describe) {
    const auto deadline = Clock::now() + shared_->options.timeout;
    auto& condition = shared_->wake[static_cast<std::size_t>(rank_)];
    while (!done()) {
      throw_if_aborted();
      if (condition.wait_until(lock, deadline) == std::cv_status::timeout && !done()) {
        throw_if_aborted();
        throw CommError(fmt::format("{} for more than {} ms (run.timeout_seconds)", describe(),
                                    shared_->options.timeout.count()));
      }
    }
    throw_if_aborted();
  }

  const std::shared_ptr<Shared> shared_;
  const int rank_;
  std::vector<Operation> operations_;  // ticket - 1; used by this rank's thread alone
  std::size_t num_finished_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_local_transports(int num_ranks,
                                                              const LocalOptions& options) {
  SLUICE_CHECK(num_ranks >= 1, "num_ranks is {}", num_ranks);
  auto shared = std::make_shared<Shared>(num_ranks, options);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < num_ranks; ++rank) {
    transports.push_back(std::make_unique<LocalTransport>(shared, rank));
  }
  return transports;
}

}  // namespace sluice
