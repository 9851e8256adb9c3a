#include "sluice/comm/local.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

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

/// What a set of transports and all that was split from it have in common. `mutex` guards
/// everything here and in every Shared; each rank sleeps on its own condition variable, so that a
/// message wakes the one rank it is for.
struct Family {
  Family(int ranks, const LocalOptions& local_options)
      : options(local_options), wake(static_cast<std::size_t>(ranks)) {}

  const LocalOptions options;
  std::mutex mutex;
  std::vector<std::condition_variable> wake;
  std::optional<std::string> abort_reason;
};

/// What the ranks of one transport share.
struct Shared {
  Shared(std::shared_ptr<Family> of, std::vector<int> ranks)
      : family(std::move(of)),
        members(std::move(ranks)),
        num_ranks(static_cast<int>(members.size())),
        channels(members.size() * members.size() * kNumDirections),
        contributions(members.size()) {}

  Channel& channel(int source, int destination, Direction direction) {
    const auto index = (static_cast<std::size_t>(source) * static_cast<std::size_t>(num_ranks) +
                        static_cast<std::size_t>(destination)) *
                           kNumDirections +
                       static_cast<std::size_t>(direction);
    return channels[index];
  }

  std::condition_variable& wake(int rank) {
    return family->wake[static_cast<std::size_t>(members[static_cast<std::size_t>(rank)])];
  }

  const std::shared_ptr<Family> family;
  const std::vector<int> members;  // numbers in the family, by rank here
  const int num_ranks;
  std::vector<Channel> channels;
  // all_gather: a generation ends when all ranks have contributed.
  std::vector<std::vector<double>> contributions;
  int num_contributed = 0;
  std::uint64_t generation = 0;
  std::shared_ptr<const std::vector<std::vector<double>>> gathered;
  // split: by color, from the first rank that asks until the last one has asked.
  std::map<int, std::weak_ptr<Shared>> children;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), family_(*shared_->family), rank_(rank) {}
  LocalTransport(std::shared_ptr<Shared> shared, int rank, const Transport& parent)
      : Transport(&parent), shared_(std::move(shared)), family_(*shared_->family), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return shared_->num_ranks; }
  bool copies() const override { return false; }

  Ticket post_send(int peer, const MessageTag& tag, Buffer buffer) override {
    check_peer(peer);
    std::unique_lock lock(family_.mutex);
    throw_if_aborted();
    Channel& channel = shared_->channel(rank_, peer, tag.direction);
    channel.queue.push_back({tag, std::move(buffer)});
    ++channel.num_sent;
    operations_.push_back({peer, tag, channel.num_sent});
    shared_->wake(peer).notify_one();
    return operations_.size();
  }

  Ticket post_receive(int peer, const MessageTag& tag, Buffer /*destination*/) override {
    check_peer(peer);
    std::unique_lock lock(family_.mutex);
    throw_if_aborted();
    Channel& channel = shared_->channel(peer, rank_, tag.direction);
    ++channel.num_posted;
    operations_.push_back({peer, tag, channel.num_posted});
    if (family_.options.rendezvous) shared_->wake(peer).notify_one();
    return operations_.size();
  }

  Buffer wait_receive(Ticket ticket) override {
    const Operation operation = take(ticket);
    std::unique_lock lock(family_.mutex);
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
    if (!family_.options.rendezvous) return;  // the owner went with the message
    std::unique_lock lock(family_.mutex);
    Channel& channel = shared_->channel(rank_, operation.peer, operation.tag.direction);
    wait(lock, operation, "send", [&] { return channel.num_posted >= operation.sequence; });
  }

  bool is_sent(Ticket ticket) override {
    if (!family_.options.rendezvous) return true;
    const Operation& operation = operation_of(ticket);
    const std::lock_guard lock(family_.mutex);
    return shared_->channel(rank_, operation.peer, operation.tag.direction).num_posted >=
           operation.sequence;
  }

  std::vector<std::vector<double>> all_gather(std::span<const double> mine) override {
    std::unique_lock lock(family_.mutex);
    throw_if_aborted();
    const std::uint64_t generation = shared_->generation;
    shared_->contributions[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    if (++shared_->num_contributed == shared_->num_ranks) {
      shared_->gathered =
          std::make_shared<const std::vector<std::vector<double>>>(shared_->contributions);
      shared_->num_contributed = 0;
      ++shared_->generation;
      wake_all();
    } else {
      wait_until(
          lock, [&] { return shared_->generation != generation; },
          [&] {
            return fmt::format("rank {} waited for the other ranks in a collective", name(rank_));
          });
    }
    // A later generation cannot end before this rank joins it, so `gathered` is still ours.
    return *shared_->gathered;
  }

  void barrier() override { all_gather({}); }

  std::unique_ptr<Transport> split(int color) override {
    const auto colors = all_gather(std::vector{static_cast<double>(color)});
    std::vector<int> members;
    int own = 0;
    for (int rank = 0; rank < size(); ++rank) {
      if (colors[static_cast<std::size_t>(rank)][0] != static_cast<double>(color)) continue;
      if (rank == rank_) own = static_cast<int>(members.size());
      members.push_back(name(rank));
    }
    std::shared_ptr<Shared> child;
    {
      const std::lock_guard lock(family_.mutex);
      child = shared_->children[color].lock();
      if (child == nullptr) {
        child = std::make_shared<Shared>(shared_->family, std::move(members));
        shared_->children[color] = child;
      }
    }
    barrier();  // everybody has it: the next split begins anew
    {
      const std::lock_guard lock(family_.mutex);
      shared_->children.erase(color);
    }
    barrier();
    return std::make_unique<LocalTransport>(std::move(child), own, *this);
  }

  void abort(const std::string& reason) override {
    std::unique_lock lock(family_.mutex);
    if (!family_.abort_reason) family_.abort_reason = reason;
    for (auto& condition : family_.wake) condition.notify_all();
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

  const Operation& operation_of(Ticket ticket) const {
    SLUICE_CHECK(ticket >= 1 && ticket <= operations_.size(), "unknown ticket {}", ticket);
    const Operation& operation = operations_[ticket - 1];
    SLUICE_CHECK(operation.peer >= 0, "ticket {} was waited for twice", ticket);
    return operation;
  }

  Operation take(Ticket ticket) {
    const Operation operation = operation_of(ticket);
    operations_[ticket - 1].peer = -1;
    if (++num_finished_ == operations_.size()) {  // all done: tickets start over
      operations_.clear();
      num_finished_ = 0;
    }
    return operation;
  }

  /// A rank's number in reports.
  int name(int rank) const { return shared_->members[static_cast<std::size_t>(rank)]; }

  void wake_all() {
    for (int rank = 0; rank < shared_->num_ranks; ++rank) shared_->wake(rank).notify_one();
  }

  void throw_if_aborted() const {
    if (!family_.abort_reason) return;
    throw CommError(
        fmt::format("rank {} stopped{}: {}", name(rank_), last_done(), *family_.abort_reason));
  }

  template <typename Done>
  void wait(std::unique_lock<std::mutex>& lock, const Operation& operation, const char* what,
            Done done) {
    wait_until(lock, done, [&] {
      return fmt::format("rank {} waited for the {} of {} {} rank {}", name(rank_), what,
                         to_string(operation.tag), what[0] == 's' ? "to" : "from",
                         name(operation.peer));
    });
  }

  template <typename Done, typename Describe>
  void wait_until(std::unique_lock<std::mutex>& lock, Done done, Describe describe) {
    const auto deadline = Clock::now() + family_.options.timeout;
    auto& condition = shared_->wake(rank_);
    const auto throw_abort = [&] {
      if (!family_.abort_reason) return;
      throw CommError(fmt::format("{}{}: {}", describe(), last_done(), *family_.abort_reason));
    };
    while (!done()) {
      throw_abort();
      if (condition.wait_until(lock, deadline) == std::cv_status::timeout && !done()) {
        throw_abort();
        throw CommError(fmt::format("{} for more than {} ms (run.timeout_seconds){}", describe(),
                                    family_.options.timeout.count(), last_done()));
      }
    }
    throw_abort();
  }

  const std::shared_ptr<Shared> shared_;
  Family& family_;
  const int rank_;
  std::vector<Operation> operations_;  // ticket - 1; used by this rank's thread alone
  std::size_t num_finished_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_local_transports(int num_ranks,
                                                              const LocalOptions& options) {
  SLUICE_CHECK(num_ranks >= 1, "num_ranks is {}", num_ranks);
  std::vector<int> members(static_cast<std::size_t>(num_ranks));
  std::iota(members.begin(), members.end(), 0);
  auto shared =
      std::make_shared<Shared>(std::make_shared<Family>(num_ranks, options), std::move(members));
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < num_ranks; ++rank) {
    transports.push_back(std::make_unique<LocalTransport>(shared, rank));
  }
  return transports;
}

}  // namespace sluice
