#include "sluice/comm/nccl.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "sluice/comm/agree.h"
#include "sluice/comm/peers.h"
#include "sluice/comm/store_job.h"
#include "sluice/common/errors.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

/// What goes ahead of the bytes of a message. In page-locked memory, which both NCCL and the host
/// reach.
struct Header {
  std::uint64_t tag = 0;  // hash: equal for different tags once in 2^64
  std::uint64_t num_bytes = 0;
};

std::uint64_t hash_of(const MessageTag& tag) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int32_t field : {static_cast<std::int32_t>(tag.direction), tag.stage,
                                   tag.microbatch, tag.slice, tag.layer, tag.part}) {
    hash = (hash ^ static_cast<std::uint32_t>(field)) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return hash;
}

/// A lock, if it can be had within `limit`. (The library's timed locks are unknown to
/// ThreadSanitizer.)
std::unique_lock<std::mutex> lock_within(std::mutex& mutex, milliseconds limit) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (; !lock.owns_lock() && limit > milliseconds(0); limit -= milliseconds(1)) {
    std::this_thread::sleep_for(milliseconds(1));
    if (lock.try_lock()) break;
  }
  return lock;
}

/// The device side of a rank: communicators, streams, events and headers of all its transports.
/// Threads: the rank's; abort_all() and find_error() on a helper of the job.
class Lanes {
 public:
  explicit Lanes(NcclDevice device) : device_(std::move(device)) {}
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  struct Lane {
    NcclComm comm = nullptr;
    void* stream = nullptr;
    int peer = 0;  // rank in the communicator
  };
  struct Message {
    void* done = nullptr;  // event
    Header* header = nullptr;
  };

  NcclUniqueId make_id() const;
  Lane open(const NcclUniqueId& id, int rank_in_comm);
  void close(const Lane& lane);

  Message post_send(const Lane& lane, const Header& header, std::span<const std::byte> bytes);
  Message post_receive(const Lane& lane, std::span<std::byte> bytes);
  bool is_done(const Message& message) const { return device_.cuda->is_done(message.done); }
  /// Gives back what a message that is done has held.
  void release(const Message& message);

  void abort_all();
  std::optional<std::string> find_error();
  /// The calling thread works with the rank's GPU from now on.
  void use_device() const { device_.cuda->use_device(device_.index); }

 private:
  static constexpr std::size_t kHeadersAtOnce = 16384;

  Message take(const Lane& lane);
  template <typename Calls>
  void launch(const Lane& lane, const Message& message, Calls calls);

  const NcclDevice device_;
  std::mutex calls_mutex_;  // around calls with communicators
  bool aborted_ = false;
  std::vector<NcclComm> comms_;
  void* ready_ = nullptr;  // event: what the default stream was given is done
  std::vector<void*> all_events_;
  std::vector<void*> events_;     // free ones
  std::vector<Header*> headers_;  // free ones
  std::vector<void*> header_blocks_;
};

Lanes::~Lanes() {
  const CudaApi& cuda = *device_.cuda;
  for (void* event : all_events_) cuda.event_destroy(event);
  if (ready_ != nullptr) cuda.event_destroy(ready_);
  for (void* block : header_blocks_) cuda.free_host(block);
}

NcclUniqueId Lanes::make_id() const {
  NcclUniqueId id{};
  device_.nccl->check(device_.nccl->get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

Lanes::Lane Lanes::open(const NcclUniqueId& id, int rank_in_comm) {
  use_device();
  Lane lane{.stream = device_.cuda->make_stream(), .peer = 1 - rank_in_comm};
  device_.nccl->check(device_.nccl->comm_init_rank(&lane.comm, 2, id, rank_in_comm),
                      "ncclCommInitRank");
  const std::lock_guard lock(calls_mutex_);
  comms_.push_back(lane.comm);
  return lane;
}

void Lanes::close(const Lane& lane) {
  const std::lock_guard lock(calls_mutex_);
  if (!aborted_) {
    std::erase(comms_, lane.comm);
    device_.nccl->comm_destroy(lane.comm);
  }
  device_.cuda->stream_destroy(lane.stream);
}

Lanes::Message Lanes::take(const Lane& lane) {
  const CudaApi& cuda = *device_.cuda;
  use_device();  // the default stream is that of the calling thread's device
  if (ready_ == nullptr) ready_ = cuda.make_event();
  if (events_.empty()) {
    all_events_.push_back(cuda.make_event());
    events_.push_back(all_events_.back());
  }
  if (headers_.empty()) {
    void* block = nullptr;
    cuda.check(cuda.host_alloc(&block, kHeadersAtOnce * sizeof(Header), 0), "cudaHostAlloc");
    header_blocks_.push_back(block);
    for (std::size_t i = 0; i < kHeadersAtOnce; ++i) {
      headers_.push_back(static_cast<Header*>(block) + i);
    }
  }
  const Message message{events_.back(), headers_.back()};
  events_.pop_back();
  headers_.pop_back();
  // The bytes are there, and nobody reads or writes the room any more.
  cuda.check(cuda.event_record(ready_, nullptr), "cudaEventRecord");
  cuda.check(cuda.stream_wait_event(lane.stream, ready_, 0), "cudaStreamWaitEvent");
  return message;
}

void Lanes::release(const Message& message) {
  events_.push_back(message.done);
  headers_.push_back(message.header);
}

template <typename Calls>
void Lanes::launch(const Lane& lane, const Message& message, Calls calls) {
  const NcclApi& nccl = *device_.nccl;
  {
    const std::lock_guard lock(calls_mutex_);
    if (aborted_) throw CommError("the channels are closed");
    nccl.check(nccl.group_start(), "ncclGroupStart");
    calls(nccl);
    nccl.check(nccl.group_end(), "ncclGroupEnd");
  }
  device_.cuda->check(device_.cuda->event_record(message.done, lane.stream), "cudaEventRecord");
}

Lanes::Message Lanes::post_send(const Lane& lane, const Header& header,
                                std::span<const std::byte> bytes) {
  const Message message = take(lane);
  *message.header = header;
  launch(lane, message, [&](const NcclApi& nccl) {
    nccl.check(
        nccl.send(message.header, sizeof(Header), kNcclInt8, lane.peer, lane.comm, lane.stream),
        "ncclSend");
    if (bytes.empty()) return;
    nccl.check(nccl.send(bytes.data(), bytes.size(), kNcclInt8, lane.peer, lane.comm, lane.stream),
               "ncclSend");
  });
  return message;
}

Lanes::Message Lanes::post_receive(const Lane& lane, std::span<std::byte> bytes) {
  const Message message = take(lane);
  *message.header = {};
  launch(lane, message, [&](const NcclApi& nccl) {
    nccl.check(
        nccl.recv(message.header, sizeof(Header), kNcclInt8, lane.peer, lane.comm, lane.stream),
        "ncclRecv");
    if (bytes.empty()) return;
    nccl.check(nccl.recv(bytes.data(), bytes.size(), kNcclInt8, lane.peer, lane.comm, lane.stream),
               "ncclRecv");
  });
  return message;
}

// A rank that hangs inside NCCL holds the mutex, and is freed by nothing else. NCCL returns when
// nothing moves any more.
void Lanes::abort_all() {
  const auto lock = lock_within(calls_mutex_, milliseconds(200));
  if (!device_.nccl || std::exchange(aborted_, true)) return;
  use_device();
  for (const NcclComm comm : std::exchange(comms_, {})) device_.nccl->comm_abort(comm);
}

std::optional<std::string> Lanes::find_error() {
  const auto lock = lock_within(calls_mutex_, milliseconds(50));
  if (!lock.owns_lock()) return std::nullopt;
  for (const NcclComm comm : comms_) {
    int error = kNcclSuccess;
    const int result = device_.nccl->comm_get_async_error(comm, &error);
    const int found = result != kNcclSuccess ? result : error;
    if (found == kNcclSuccess || found == kNcclInProgress) continue;
    return fmt::format("NCCL reports: {}", device_.nccl->get_error_string(found));
  }
  return std::nullopt;
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::unique_ptr<Store> store, const NcclOptions& options, const NcclDevice& device)
      : lanes_(device.nccl ? std::make_shared<Lanes>(device) : nullptr),
        job_(std::make_shared<StoreJob>(std::move(store), job_options(options))),
        scope_("world"),
        members_(static_cast<std::size_t>(options.size)),
        rank_(options.rank) {
    std::iota(members_.begin(), members_.end(), 0);
    if (!lanes_) return;
    hooks_ = job_->add_hooks([lanes = lanes_] { return lanes->find_error(); },
                             [lanes = lanes_] { lanes->abort_all(); });
  }

  NcclTransport(const NcclTransport& parent, std::string scope, std::vector<int> members, int rank)
      : Transport(&parent),
        lanes_(parent.lanes_),
        job_(parent.job_),
        hooks_(parent.hooks_),
        scope_(std::move(scope)),
        members_(std::move(members)),
        rank_(rank) {}

  ~NcclTransport() override {
    // NCCL would wait for what is on its way.
    const bool clean = !job_->aborted() && num_finished_ == operations_.size();
    if (lanes_ && !clean) lanes_->abort_all();
    for (const auto& [channel, lane] : channels_) lanes_->close(lane);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  bool copies() const override { return true; }

  void open(const std::vector<Channel>& channels) override;
  Ticket post_send(int peer, const MessageTag& tag, Buffer buffer) override;
  Ticket post_receive(int peer, const MessageTag& tag, Buffer destination) override;
  Buffer wait_receive(Ticket ticket) override { return wait(ticket); }
  void wait_send(Ticket ticket) override { wait(ticket); }
  bool is_sent(Ticket ticket) override { return lanes_->is_done(operation_of(ticket).message); }

  std::vector<std::vector<double>> all_gather(std::span<const double> mine) override;
  void barrier() override { all_gather({}); }
  std::unique_ptr<Transport> split(int color) override;
  void abort(const std::string& reason) override {
    job_->notice();
    job_->abort(reason);
  }

 private:
  struct Operation {
    int peer = -1;  // -1: waited for
    bool is_send = false;
    MessageTag tag;
    Buffer buffer;
    Lanes::Message message;
  };

  StoreJobOptions job_options(const NcclOptions& options) const {
    return {.rank = options.rank,
            .size = options.size,
            .prefix = options.prefix,
            .timeout = options.timeout,
            .last_word = options.last_word,
            .last_done = [this] { return last_done(); }};
  }

  int name(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  void open_one(const Channel& channel);
  const Lanes::Lane& lane_of(const Channel& channel) const;
  Operation& begin(int peer, const MessageTag& tag, Buffer buffer, bool is_send);
  Operation& operation_of(Ticket ticket);
  Buffer wait(Ticket ticket);
  void check_arrival(const Operation& operation) const;
  std::string describe(const Operation& operation) const;

  const std::shared_ptr<Lanes> lanes_;  // null: collectives alone
  const std::shared_ptr<StoreJob> job_;
  StoreJob::Hook hooks_;
  const std::string scope_;   // of this transport's keys in the store
  std::vector<int> members_;  // ranks of the job, by rank here
  const int rank_;
  std::map<Channel, Lanes::Lane> channels_;
  std::vector<Operation> operations_;  // ticket - 1
  std::size_t num_finished_ = 0;
  int round_ = 0;  // of collectives
  int num_splits_ = 0;
};

// ----- channels

/// Channels of ranks that have none in common can be opened at the same time: first those that
/// begin at an even rank, then the others.
std::vector<Channel> in_opening_order(std::vector<Channel> channels) {
  const auto key = [](const Channel& one) {
    const int low = std::min(one.source, one.destination);
    const int distance = std::max(one.source, one.destination) - low;
    return std::tuple(distance, low / distance % 2, low, one);
  };
  std::sort(channels.begin(), channels.end(),
            [&](const Channel& a, const Channel& b) { return key(a) < key(b); });
  channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
  return channels;
}

void NcclTransport::open(const std::vector<Channel>& channels) {
  SLUICE_CHECK(lanes_ != nullptr, "a transport without a device has no channels");
  try {
    for (const Channel& channel : in_opening_order(channels)) {
      SLUICE_CHECK(channel.source != channel.destination && channel.source >= 0 &&
                       channel.source < size() && channel.destination >= 0 &&
                       channel.destination < size(),
                   "no channel from rank {} to rank {}", channel.source, channel.destination);
      if (channel.source != rank_ && channel.destination != rank_) continue;
      if (!channels_.contains(channel)) open_one(channel);
    }
  } catch (const CommError& error) {
    abort(error.what());  // the peer waits inside NCCL
    throw;
  }
  barrier();
}

void NcclTransport::open_one(const Channel& channel) {
  const bool sends = channel.source == rank_;
  const int peer = sends ? channel.destination : channel.source;
  const bool first = rank_ < peer;
  const std::string key = fmt::format("{}/channel/{}-{}-{}", scope_, channel.source,
                                      channel.destination, static_cast<int>(channel.direction));
  const std::string what =
      fmt::format("rank {} waited for rank {} to open a channel", name(rank_), name(peer));
  NcclUniqueId id{};
  if (first) {
    id = lanes_->make_id();
    job_->set(key, std::string(id.bytes.data(), id.bytes.size()));
  } else {
    const std::string bytes = job_->wait_for(key, what);
    SLUICE_CHECK(bytes.size() == id.bytes.size(), "{} bytes of an id", bytes.size());
    std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  }
  job_->run_limited(what, [&] { channels_[channel] = lanes_->open(id, first ? 0 : 1); });
  // The first message makes the connection, and waits for the peer while it is posted.
  Lanes::Message message;
  job_->run_limited(what, [&] {
    message = sends ? lanes_->post_send(channels_[channel], {}, {})
                    : lanes_->post_receive(channels_[channel], {});
  });
  job_->wait_until([&] { return lanes_->is_done(message); }, [&] { return what; });
  lanes_->release(message);
}

const Lanes::Lane& NcclTransport::lane_of(const Channel& channel) const {
  const auto found = channels_.find(channel);
  SLUICE_CHECK(found != channels_.end(),
               "the channel of direction {} from rank {} to rank {} was not opened",
               static_cast<int>(channel.direction), channel.source, channel.destination);
  return found->second;
}

// ----- messages

NcclTransport::Operation& NcclTransport::begin(int peer, const MessageTag& tag, Buffer buffer,
                                               bool is_send) {
  SLUICE_CHECK(peer >= 0 && peer < size() && peer != rank_, "rank {} has no channel to rank {}",
               rank_, peer);
  SLUICE_CHECK(buffer.num_bytes == 0 || buffer.data != nullptr, "no bytes given for {}",
               to_string(tag));
  Operation& operation = operations_.emplace_back();
  operation = {.peer = peer, .is_send = is_send, .tag = tag, .buffer = std::move(buffer)};
  if (job_->aborted()) job_->throw_abort(describe(operation));
  return operation;
}

Transport::Ticket NcclTransport::post_send(int peer, const MessageTag& tag, Buffer buffer) {
  Operation& operation = begin(peer, tag, std::move(buffer), /*is_send=*/true);
  const Lanes::Lane& lane = lane_of({rank_, peer, tag.direction});
  const Buffer& bytes = operation.buffer;
  job_->run_limited(describe(operation), [&] {
    operation.message =
        lanes_->post_send(lane, {hash_of(tag), bytes.num_bytes}, {bytes.data, bytes.num_bytes});
  });
  return operations_.size();
}

Transport::Ticket NcclTransport::post_receive(int peer, const MessageTag& tag, Buffer destination) {
  Operation& operation = begin(peer, tag, std::move(destination), /*is_send=*/false);
  const Lanes::Lane& lane = lane_of({peer, rank_, tag.direction});
  const Buffer& room = operation.buffer;
  job_->run_limited(describe(operation), [&] {
    operation.message = lanes_->post_receive(lane, {room.data, room.num_bytes});
  });
  return operations_.size();
}

NcclTransport::Operation& NcclTransport::operation_of(Ticket ticket) {
  SLUICE_CHECK(ticket >= 1 && ticket <= operations_.size(), "unknown ticket {}", ticket);
  Operation& operation = operations_[ticket - 1];
  SLUICE_CHECK(operation.peer >= 0, "ticket {} was waited for twice", ticket);
  return operation;
}

Buffer NcclTransport::wait(Ticket ticket) {
  Operation& operation = operation_of(ticket);
  job_->wait_until([&] { return lanes_->is_done(operation.message); },
                   [&] { return describe(operation); });
  if (job_->aborted()) job_->throw_abort(describe(operation));  // done by being aborted
  if (!operation.is_send) check_arrival(operation);
  lanes_->release(operation.message);
  Buffer buffer = std::move(operation.buffer);
  operation.peer = -1;
  if (++num_finished_ == operations_.size()) {  // all done: tickets start over
    operations_.clear();
    num_finished_ = 0;
  }
  return buffer;
}

void NcclTransport::check_arrival(const Operation& operation) const {
  const Header& header = *operation.message.header;
  SLUICE_CHECK(header.tag == hash_of(operation.tag),
               "rank {} expected {} from rank {} and got another message", name(rank_),
               to_string(operation.tag), name(operation.peer));
  SLUICE_CHECK(header.num_bytes == operation.buffer.num_bytes,
               "rank {} expected {} bytes of {} from rank {} and got {}", name(rank_),
               operation.buffer.num_bytes, to_string(operation.tag), name(operation.peer),
               header.num_bytes);
}

std::string NcclTransport::describe(const Operation& operation) const {
  return fmt::format("rank {} waited for the {} of {} {} rank {}", name(rank_),
                     operation.is_send ? "send" : "receive", to_string(operation.tag),
                     operation.is_send ? "to" : "from", name(operation.peer));
}

// ----- collectives

std::vector<std::vector<double>> NcclTransport::all_gather(std::span<const double> mine) {
  if (job_->aborted()) job_->throw_abort(fmt::format("rank {} stopped", name(rank_)));
  const std::string text(reinterpret_cast<const char*>(mine.data()), mine.size_bytes());
  std::vector<std::vector<double>> all;
  for (const std::string& one : job_->gather(scope_, round_++, members_, text)) {
    auto& numbers = all.emplace_back(one.size() / sizeof(double));
    if (!one.empty()) std::memcpy(numbers.data(), one.data(), one.size());
  }
  return all;
}

std::unique_ptr<Transport> NcclTransport::split(int color) {
  const auto colors = all_gather(std::vector{static_cast<double>(color)});
  std::vector<int> members;
  int own = 0;
  for (int rank = 0; rank < size(); ++rank) {
    if (colors[static_cast<std::size_t>(rank)][0] != static_cast<double>(color)) continue;
    if (rank == rank_) own = static_cast<int>(members.size());
    members.push_back(name(rank));
  }
  return std::make_unique<NcclTransport>(
      *this, fmt::format("{}.{}.{}", scope_, num_splits_++, color), std::move(members), own);
}

}  // namespace

std::unique_ptr<Transport> connect_nccl(std::unique_ptr<Store> store, const NcclOptions& options,
                                        const NcclDevice& device) {
  return std::make_unique<NcclTransport>(std::move(store), options, device);
}

void check_devices(Transport& world, const std::string& name) {
  const auto names = gather_texts(world, name);
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    const auto same =
        std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(rank), names[rank]);
    if (*same != names[rank] || same - names.begin() == static_cast<std::ptrdiff_t>(rank)) continue;
    throw InvalidArgument(fmt::format(
        "ranks {} and {} are both on GPU {}, and NCCL needs a GPU for every rank: start as many "
        "processes on a machine as it has GPUs, or run all ranks of one GPU as threads, without "
        "torchrun",
        same - names.begin(), rank, names[rank]));
  }
}

std::string device_name(const CudaApi& cuda, int index) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("{} of {}", cuda.bus_id(index), host.data());
}

}  // namespace sluice
