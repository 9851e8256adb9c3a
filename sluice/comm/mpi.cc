#include "sluice/comm/mpi.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // after mpi.h
#endif

#include "sluice/comm/backoff.h"
#include "sluice/comm/mpi_calls.h"
#include "sluice/comm/peers.h"
#include "sluice/common/errors.h"

namespace sluice {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct MpiSession::State {
  std::mutex mutex;  // around every MPI call: MPI_THREAD_SERIALIZED
  int rank = 0;
  int size = 1;
  int largest_tag = 0;
  std::atomic<bool> lost = false;  // a rank may be gone: nothing waits for all any more
};

namespace {

constexpr std::size_t kReasonBytes = 1024;
constexpr std::size_t kPartBytes = std::size_t{1} << 30;  // counts of MPI are ints
constexpr auto kTick = milliseconds(4);
constexpr auto kIdleTick = milliseconds(10);
constexpr auto kPeerCheck = milliseconds(100);
constexpr auto kLastWordAfter = milliseconds(500);

/// What a transport and all that was split from it have in common: the helper thread and the abort.
class Family {
 public:
  Family(std::shared_ptr<MpiSession::State> session, MpiOptions options);
  ~Family();

  MpiSession::State& session() { return *session_; }
  const MpiOptions& options() const { return options_; }

  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  std::string reason() const;

  /// The first reason stays; it is sent to all ranks unless it came from one.
  void abort(const std::string& reason, bool tell_others);

  /// The rank's own thread knows of its error: the helper need not speak for it.
  void notice() { noticed_ = true; }

  /// Polls `done` under the session's mutex. Throws: CommError on abort or timeout.
  template <typename Done, typename Describe>
  void wait_until(Done done, Describe describe);
  [[noreturn]] void throw_abort(const std::string& what);

  /// A duplicate of `comm`, for all ranks of the job.
  MPI_Comm duplicate(MPI_Comm comm);

  /// Gathers everybody's name, so that the helper can watch them.
  void watch(std::vector<ProcessName> processes);

  std::atomic<int> num_outstanding = 0;
  std::function<std::string()> last_done = [] { return std::string(); };

 private:
  void help(const std::stop_token& stop);
  void take_abort_message();
  void check_peers();
  void send_reason();

  const std::shared_ptr<MpiSession::State> session_;
  const MpiOptions options_;
  MPI_Comm comm_ = MPI_COMM_NULL;  // carries abort reasons alone
  MPI_Request abort_receive_ = MPI_REQUEST_NULL;
  std::array<char, kReasonBytes> incoming_{};
  std::array<char, kReasonBytes> outgoing_{};
  std::vector<MPI_Request> abort_sends_;
  const ProcessName self_ = this_process();
  std::vector<ProcessName> processes_;  // by rank of the job
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> noticed_ = false;  // by the rank's own thread
  std::atomic<bool> waiting_ = false;
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::mutex sleep_mutex_;
  std::condition_variable_any sleep_;
  std::jthread helper_;
};

Family::Family(std::shared_ptr<MpiSession::State> session, MpiOptions options)
    : session_(std::move(session)), options_(std::move(options)) {
  comm_ = duplicate(MPI_COMM_WORLD);
  const std::lock_guard lock(session_->mutex);
  check_mpi(MPI_Irecv(incoming_.data(), static_cast<int>(incoming_.size()), MPI_CHAR,
                      MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &abort_receive_),
            "MPI_Irecv");
}

Family::~Family() {
  if (helper_.joinable()) {
    helper_.request_stop();
    helper_.join();
  }
  const std::lock_guard lock(session_->mutex);
  if (abort_receive_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&abort_receive_);
    MPI_Wait(&abort_receive_, MPI_STATUS_IGNORE);
  }
  if (!aborted()) MPI_Comm_free(&comm_);
}

std::string Family::reason() const {
  const std::lock_guard lock(reason_mutex_);
  return reason_;
}

void Family::abort(const std::string& reason, bool tell_others) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (aborted()) return;
    reason_ = reason;
    session_->lost = true;
    aborted_.store(true, std::memory_order_release);
  }
  if (tell_others) send_reason();
}

void Family::send_reason() {
  const std::lock_guard lock(session_->mutex);
  const std::string text = reason();
  std::memcpy(outgoing_.data(), text.data(), std::min(text.size(), outgoing_.size() - 1));
  for (int rank = 0; rank < session_->size; ++rank) {
    if (rank == session_->rank) continue;
    abort_sends_.push_back(MPI_REQUEST_NULL);
    MPI_Isend(outgoing_.data(), static_cast<int>(outgoing_.size()), MPI_CHAR, rank, 0, comm_,
              &abort_sends_.back());
  }
  // A peer that is gone never takes it: this ends soon either way.
  const auto deadline = Clock::now() + milliseconds(200);
  int done = 0;
  while (done == 0 && Clock::now() < deadline) {
    MPI_Testall(static_cast<int>(abort_sends_.size()), abort_sends_.data(), &done,
                MPI_STATUSES_IGNORE);
  }
}

void Family::throw_abort(const std::string& what) {
  noticed_ = true;
  throw CommError(fmt::format("{}{}: {}", what, last_done(), reason()));
}

template <typename Done, typename Describe>
void Family::wait_until(Done done, Describe describe) {
  Backoff backoff;
  std::optional<Clock::time_point> deadline;
  struct Mark {
    explicit Mark(std::atomic<bool>& waiting) : flag(waiting) { flag = true; }
    ~Mark() { flag = false; }
    std::atomic<bool>& flag;
  };
  std::optional<Mark> mark;
  for (;;) {
    if (aborted()) throw_abort(describe());
    {
      const std::lock_guard lock(session_->mutex);
      if (done()) return;
    }
    if (!mark) mark.emplace(waiting_);
    if (!backoff.pause()) continue;
    const auto now = Clock::now();
    if (!deadline) deadline = now + options_.timeout;
    if (now < *deadline) continue;
    noticed_ = true;
    throw CommError(fmt::format("{} for more than {} ms (run.timeout_seconds){}", describe(),
                                options_.timeout.count(), last_done()));
  }
}

MPI_Comm Family::duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(session_->mutex);
    check_mpi(MPI_Comm_idup(comm, &copy, &request), "MPI_Comm_idup");
  }
  wait_until([&] { return test(request); },
             [&] { return fmt::format("rank {} waited for all ranks to begin", session_->rank); });
  return copy;
}

void Family::watch(std::vector<ProcessName> processes) {
  processes_ = std::move(processes);
  helper_ = std::jthread([this](const std::stop_token& stop) { help(stop); });
}

void Family::help(const std::stop_token& stop) {
  auto next_check = Clock::now();
  std::optional<Clock::time_point> speak;
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(sleep_mutex_);
      sleep_.wait_for(lock, stop, num_outstanding > 0 && !waiting_ ? kTick : kIdleTick,
                      [] { return false; });
    }
    try {
      if (!aborted()) take_abort_message();
      const auto now = Clock::now();
      if (!aborted() && now >= next_check) {
        next_check = now + kPeerCheck;
        check_peers();
      }
      if (!aborted() || noticed_ || !options_.last_word) continue;
      if (!speak) speak = now + kLastWordAfter;
      if (now >= *speak) {
        options_.last_word(
            fmt::format("rank {} was computing{}: {}", session_->rank, last_done(), reason()));
        return;
      }
    } catch (const Error& error) {
      abort(error.what(), false);
    }
  }
}

/// Testing any request also moves all messages on.
void Family::take_abort_message() {
  {
    const std::lock_guard lock(session_->mutex);
    if (!test(abort_receive_)) return;
  }
  abort(incoming_.data(), false);
}

void Family::check_peers() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (is_alive(processes_[rank], self_)) continue;
    // What it said before it ended has the better reason.
    for (int i = 0; i < 5 && !aborted(); ++i) {
      take_abort_message();
      std::this_thread::sleep_for(milliseconds(2));
    }
    return abort(fmt::format("rank {} is gone (process {} ended)", rank, processes_[rank].pid),
                 true);
  }
}

/// Communicators of one transport. All ranks of the job take part in making them.
struct Communicators {
  std::array<MPI_Comm, kNumDirections> channels{};
  MPI_Comm collective = MPI_COMM_NULL;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<Family> family, std::vector<int> members, int rank)
      : family_(std::move(family)), members_(std::move(members)), rank_(rank) {
    open();
  }
  MpiTransport(std::shared_ptr<Family> family, std::vector<int> members, int rank,
               const Transport& parent)
      : Transport(&parent), family_(std::move(family)), members_(std::move(members)), rank_(rank) {
    open();
  }

  ~MpiTransport() override {
    if (family_->aborted()) return;
    const std::lock_guard lock(session().mutex);
    for (MPI_Comm& comm : comms_.channels) MPI_Comm_free(&comm);
    MPI_Comm_free(&comms_.collective);
  }

  /// Exchanges names and starts the helper. Once, on the transport that spans the job.
  void start_helper() {
    family_->last_done = [this] { return last_done(); };
    std::vector<ProcessName> processes;
    for (const auto& numbers : all_gather(to_doubles(this_process()))) {
      processes.push_back(process_name(numbers));
    }
    family_->watch(std::move(processes));
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  bool copies() const override { return true; }

  Ticket post_send(int peer, const MessageTag& tag, Buffer buffer) override {
    return post(peer, tag, std::move(buffer), /*is_send=*/true);
  }
  Ticket post_receive(int peer, const MessageTag& tag, Buffer destination) override {
    return post(peer, tag, std::move(destination), /*is_send=*/false);
  }
  Buffer wait_receive(Ticket ticket) override { return wait(ticket); }
  void wait_send(Ticket ticket) override { wait(ticket); }
  bool is_sent(Ticket ticket) override {
    Operation& operation = operation_of(ticket);
    const std::lock_guard lock(session().mutex);
    return finished(operation);
  }

  std::vector<std::vector<double>> all_gather(std::span<const double> mine) override;
  void barrier() override { all_gather({}); }
  std::unique_ptr<Transport> split(int color) override;
  void abort(const std::string& reason) override {
    family_->notice();
    family_->abort(reason, true);
  }

 private:
  struct Operation {
    int peer = -1;  // -1: waited for
    bool is_send = false;
    MessageTag tag;
    Buffer buffer;
    MPI_Request request = MPI_REQUEST_NULL;  // of the last part; parts end in order
    std::vector<MPI_Request> earlier_parts;
  };

  void open() {
    for (MPI_Comm& comm : comms_.channels) comm = family_->duplicate(MPI_COMM_WORLD);
    comms_.collective = family_->duplicate(MPI_COMM_WORLD);
  }

  MpiSession::State& session() const { return family_->session(); }
  int name(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  MPI_Comm comm_of(Direction direction) const {
    return comms_.channels[static_cast<std::size_t>(direction)];
  }

  Ticket post(int peer, const MessageTag& tag, Buffer buffer, bool is_send);
  void post_part(Operation& operation, std::byte* data, std::size_t num_bytes);
  Operation& operation_of(Ticket ticket);
  Buffer wait(Ticket ticket);
  bool finished(Operation& operation);
  void check_arrival(const Operation& operation, const MPI_Status& status) const;
  std::string describe(const Operation& operation) const;

  const std::shared_ptr<Family> family_;
  const std::vector<int> members_;  // ranks of the job, by rank here
  const int rank_;
  Communicators comms_;
  std::vector<Operation> operations_;  // ticket - 1
  std::size_t num_finished_ = 0;
  int round_ = 0;  // of collectives
};

/// Two ends that disagree on the next message of a channel are found out by this; equal for
/// different tags once in 2^31.
int mpi_tag(const MessageTag& tag, int largest) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int32_t field : {tag.stage, tag.microbatch, tag.slice, tag.layer, tag.part}) {
    hash = (hash ^ static_cast<std::uint32_t>(field)) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return static_cast<int>(hash % static_cast<std::uint64_t>(largest));
}

Transport::Ticket MpiTransport::post(int peer, const MessageTag& tag, Buffer buffer, bool is_send) {
  SLUICE_CHECK(peer >= 0 && peer < size() && peer != rank_, "rank {} has no channel to rank {}",
               rank_, peer);
  SLUICE_CHECK(buffer.num_bytes == 0 || buffer.data != nullptr, "no bytes given for {}",
               to_string(tag));
  Operation& operation = operations_.emplace_back();
  operation = {.peer = peer, .is_send = is_send, .tag = tag, .buffer = std::move(buffer)};
  if (family_->aborted()) family_->throw_abort(describe(operation));
  {
    const std::lock_guard lock(session().mutex);
    std::byte* data = operation.buffer.data;
    std::size_t left = operation.buffer.num_bytes;
    for (; left > kPartBytes; left -= kPartBytes, data += kPartBytes) {
      post_part(operation, data, kPartBytes);
      operation.earlier_parts.push_back(operation.request);
    }
    post_part(operation, data, left);
  }
  ++family_->num_outstanding;
  return operations_.size();
}

void MpiTransport::post_part(Operation& operation, std::byte* data, std::size_t num_bytes) {
  const auto count = static_cast<int>(num_bytes);
  const int peer = name(operation.peer);
  const MPI_Comm comm = comm_of(operation.tag.direction);
  if (!operation.is_send) {
    check_mpi(MPI_Irecv(data, count, MPI_BYTE, peer, MPI_ANY_TAG, comm, &operation.request),
              "MPI_Irecv");
    return;
  }
  const int tag = mpi_tag(operation.tag, session().largest_tag);
  check_mpi(family_->options().rendezvous
                ? MPI_Issend(data, count, MPI_BYTE, peer, tag, comm, &operation.request)
                : MPI_Isend(data, count, MPI_BYTE, peer, tag, comm, &operation.request),
            "MPI_Isend");
}

MpiTransport::Operation& MpiTransport::operation_of(Ticket ticket) {
  SLUICE_CHECK(ticket >= 1 && ticket <= operations_.size(), "unknown ticket {}", ticket);
  Operation& operation = operations_[ticket - 1];
  SLUICE_CHECK(operation.peer >= 0, "ticket {} was waited for twice", ticket);
  return operation;
}

Buffer MpiTransport::wait(Ticket ticket) {
  Operation& operation = operation_of(ticket);
  family_->wait_until([&] { return finished(operation); }, [&] { return describe(operation); });
  Buffer buffer = std::move(operation.buffer);
  operation.peer = -1;
  --family_->num_outstanding;
  if (++num_finished_ == operations_.size()) {  // all done: tickets start over
    operations_.clear();
    num_finished_ = 0;
  }
  return buffer;
}

bool MpiTransport::finished(Operation& operation) {
  for (MPI_Request& request : operation.earlier_parts) {
    if (!test(request)) return false;
  }
  MPI_Status status;
  if (!test(operation.request, &status)) return false;
  if (!operation.is_send) check_arrival(operation, status);
  return true;
}

void MpiTransport::check_arrival(const Operation& operation, const MPI_Status& status) const {
  SLUICE_CHECK(status.MPI_TAG == mpi_tag(operation.tag, session().largest_tag),
               "rank {} expected {} from rank {} and got another message", name(rank_),
               to_string(operation.tag), name(operation.peer));
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  const std::size_t num_bytes =
      operation.earlier_parts.size() * kPartBytes + static_cast<std::size_t>(count);
  SLUICE_CHECK(num_bytes == operation.buffer.num_bytes,
               "rank {} expected {} bytes of {} from rank {} and got {}", name(rank_),
               operation.buffer.num_bytes, to_string(operation.tag), name(operation.peer),
               num_bytes);
}

std::string MpiTransport::describe(const Operation& operation) const {
  return fmt::format("rank {} waited for the {} of {} {} rank {}", name(rank_),
                     operation.is_send ? "send" : "receive", to_string(operation.tag),
                     operation.is_send ? "to" : "from", name(operation.peer));
}

std::vector<std::vector<double>> MpiTransport::all_gather(std::span<const double> mine) {
  const int tag = round_++ & 0x7fff;
  const auto count = static_cast<int>(mine.size());
  std::vector<std::vector<double>> all(members_.size());
  all[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
  std::vector<MPI_Request> requests;
  requests.reserve(2 * members_.size());
  std::vector<int> missing;
  if (family_->aborted()) family_->throw_abort(fmt::format("rank {} stopped", name(rank_)));
  {
    const std::lock_guard lock(session().mutex);
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      missing.push_back(peer);
      check_mpi(MPI_Isend(mine.data(), count, MPI_DOUBLE, name(peer), tag, comms_.collective,
                          &requests.emplace_back(MPI_REQUEST_NULL)),
                "MPI_Isend");
    }
  }
  const auto take = [&](int peer) {
    int arrived = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(name(peer), tag, comms_.collective, &arrived, &message, &status),
              "MPI_Improbe");
    if (arrived == 0) return false;
    int length = 0;
    MPI_Get_count(&status, MPI_DOUBLE, &length);
    auto& values = all[static_cast<std::size_t>(peer)];
    values.resize(static_cast<std::size_t>(length));
    check_mpi(MPI_Imrecv(values.data(), length, MPI_DOUBLE, &message,
                         &requests.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Imrecv");
    return true;
  };
  family_->wait_until(
      [&] {
        std::erase_if(missing, take);
        return missing.empty() && std::all_of(requests.begin(), requests.end(),
                                              [](MPI_Request& request) { return test(request); });
      },
      [&] {
        return fmt::format("rank {} waited for rank {} in a collective", name(rank_),
                           missing.empty() ? name((rank_ + 1) % size()) : name(missing.front()));
      });
  return all;
}

std::unique_ptr<Transport> MpiTransport::split(int color) {
  const auto colors = all_gather(std::vector{static_cast<double>(color)});
  std::vector<int> members;
  int own = 0;
  for (int rank = 0; rank < size(); ++rank) {
    if (colors[static_cast<std::size_t>(rank)][0] != static_cast<double>(color)) continue;
    if (rank == rank_) own = static_cast<int>(members.size());
    members.push_back(name(rank));
  }
  return std::make_unique<MpiTransport>(family_, std::move(members), own, *this);
}

}  // namespace

bool MpiSession::available() { return true; }

bool MpiSession::moves_device_memory() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

MpiSession::MpiSession() : state_(std::make_shared<State>()) {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Failure("this MPI was built without support for threads; use one that has it");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &state_->size);
  int* largest = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found);
  state_->largest_tag = found != 0 ? *largest : 32767;
}

MpiSession::~MpiSession() {
  // After an abort all may still live (a test, a wrong setting); then finalizing is possible.
  const std::lock_guard lock(state_->mutex);
  MPI_Request request = MPI_REQUEST_NULL;
  if (state_->lost) {
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return;
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    while (!test(request)) {
      if (Clock::now() > deadline) return;
      usleep(100);
    }
  }
  MPI_Finalize();
}

int MpiSession::rank() const { return state_->rank; }
int MpiSession::size() const { return state_->size; }

std::unique_ptr<Transport> MpiSession::connect(const MpiOptions& options) {
  auto family = std::make_shared<Family>(state_, options);
  std::vector<int> members(static_cast<std::size_t>(state_->size));
  std::iota(members.begin(), members.end(), 0);
  auto transport = std::make_unique<MpiTransport>(family, std::move(members), state_->rank);
  transport->start_helper();
  return transport;
}

}  // namespace sluice
