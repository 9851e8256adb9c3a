// fake_nccl.cc - a stand-in for NCCL and CUDA's runtime on machines without a GPU, as a shared
// library with their C interface. It moves host memory between threads or processes of one machine
// and is stricter than they are: sends are never buffered, two ends must agree on every size, and
// each wrong use is counted and printed as "fake nccl: ...".
//
// What tests with it prove is the order of calls, the rendezvous and what happens after failures.
// They prove nothing about GPUs: not that bytes are complete when a message starts, nor that lanes
// move at the same time.
//
// SLUICE_FAKE_NCCL="rank=1,after=40,do=hang" in the environment of a process whose RANK is 1 makes
// its 41st message do something: hang, error (an asynchronous one). do=init-hang and init-error are
// of its communicators.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

enum Result {
  kSuccess = 0,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemote = 6
};
enum CudaError {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaInvalidDevice = 101,
  kNotReady = 600
};

std::atomic<int> violations{0};

void violate(const std::string& what) {
  ++violations;
  const std::string line = "fake nccl: " + what + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// ----- what is to go wrong

struct Injection {
  std::string what;
  int after = 0;
};

std::mutex injection_mutex;
std::optional<Injection>& injection() {
  static std::optional<Injection> one = []() -> std::optional<Injection> {
    const char* text = std::getenv("SLUICE_FAKE_NCCL");
    const char* rank = std::getenv("RANK");
    if (text == nullptr) return std::nullopt;
    std::map<std::string, std::string> parts;
    std::string rest = text;
    while (!rest.empty()) {
      const auto comma = rest.find(',');
      const std::string part = rest.substr(0, comma);
      rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
      parts[part.substr(0, part.find('='))] = part.substr(part.find('=') + 1);
    }
    if (parts.contains("rank") && (rank == nullptr || parts["rank"] != rank)) return std::nullopt;
    return Injection{parts["do"], parts.contains("after") ? std::atoi(parts["after"].c_str()) : 0};
  }();
  return one;
}

/// What happens to the next message ("") or communicator ("init-").
std::string next_injection(const std::string& prefix) {
  const std::lock_guard lock(injection_mutex);
  auto& one = injection();
  if (!one || one->what.starts_with("init-") != !prefix.empty()) return "";
  return one->after-- > 0 ? "" : one->what;
}

// ----- streams and events

struct Marker {
  std::atomic<bool> done = false;
};

/// Runs what it is given in order on a thread of its own.
class Stream {
 public:
  static Stream* make() {
    auto stream = std::shared_ptr<Stream>(new Stream);
    stream->self_ = stream;
    std::thread([stream] { stream->run(); }).detach();
    return stream.get();
  }
  void push(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  /// The thread ends when it has done what it was given.
  void end() {
    const std::shared_ptr<Stream> keep = std::move(self_);
    push(nullptr);
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (!task) return;
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::shared_ptr<Stream> self_;
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Marker> marker;  // of the last record
};

// ----- communicators

struct Comm {
  int rank = 0;
  int num_ranks = 1;
  int fd = -1;
  std::atomic<bool> aborted = false;
  std::atomic<int> error = kSuccess;
  std::atomic<int> outstanding = 0;
  std::atomic<void*> stream = nullptr;  // of the messages on their way
  ~Comm() {
    if (fd >= 0) close(fd);
  }
};

struct Registry {
  std::mutex mutex;
  std::map<Comm*, std::shared_ptr<Comm>> live;
  std::map<std::string, int> listeners;  // by id
};
Registry& registry() {
  static Registry* one = new Registry;  // threads may use it while the process ends
  return *one;
}

std::shared_ptr<Comm> find(void* comm) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(static_cast<Comm*>(comm));
  return found == all.live.end() ? nullptr : found->second;
}

sockaddr_un address_of(const std::string& id, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // abstract: the first byte of the path is 0
  std::memcpy(address.sun_path + 1, id.data(), id.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + id.size());
  return address;
}

/// Waits until the socket is ready; false when the communicator was aborted.
bool ready(const Comm& comm, short events) {
  while (!comm.aborted) {
    pollfd one{comm.fd, events, 0};
    if (poll(&one, 1, 5) > 0) return true;
  }
  return false;
}

/// Hangs, as NCCL does when a peer is gone, until the communicator is aborted.
void hang(const Comm& comm) {
  while (!comm.aborted) usleep(2000);
}

/// Moves all bytes; false when the communicator was aborted meanwhile.
bool move_bytes(Comm& comm, void* data, std::size_t num_bytes, bool out) {
  auto* place = static_cast<char*>(data);
  while (num_bytes > 0) {
    const ssize_t moved = out ? send(comm.fd, place, num_bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(comm.fd, place, num_bytes, MSG_DONTWAIT);
    if (moved > 0) {
      place += moved;
      num_bytes -= static_cast<std::size_t>(moved);
    } else if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!ready(comm, out ? POLLOUT : POLLIN)) return false;
    } else if (moved == 0 || errno != EINTR) {
      hang(comm);  // the peer is gone
      return false;
    }
  }
  return true;
}

struct Note {
  std::uint64_t kind = 0;  // 'R' a receive is posted, 'S' bytes follow
  std::uint64_t num_bytes = 0;
};

struct Call {
  std::shared_ptr<Comm> comm;
  void* stream = nullptr;
  bool is_send = false;
  char* data = nullptr;
  std::size_t num_bytes = 0;
  std::string injected;
};

/// Both ends find the same mistake: one line is enough.
void mismatch(Comm& comm, const std::string& what) {
  if (comm.rank == 0) violate(what);
  comm.error = kInvalidUsage;
  hang(comm);
}

void run_call(Call& call) {
  Comm& comm = *call.comm;
  if (!call.injected.empty()) {
    if (call.injected == "error") comm.error = kRemote;
    return hang(comm);
  }
  Note mine{static_cast<std::uint64_t>(call.is_send ? 'S' : 'R'), call.num_bytes};
  Note theirs;
  if (!call.is_send && !move_bytes(comm, &mine, sizeof(mine), true)) return;
  if (!move_bytes(comm, &theirs, sizeof(theirs), false)) return;
  if (theirs.kind == mine.kind) return mismatch(comm, "both ends receive");
  if (theirs.num_bytes != mine.num_bytes) {
    if (call.is_send) move_bytes(comm, &mine, sizeof(mine), true);
    return mismatch(comm, "a send of " +
                              std::to_string(call.is_send ? mine.num_bytes : theirs.num_bytes) +
                              " bytes meets a receive of " +
                              std::to_string(call.is_send ? theirs.num_bytes : mine.num_bytes));
  }
  if (call.is_send && !move_bytes(comm, &mine, sizeof(mine), true)) return;
  move_bytes(comm, call.data, call.num_bytes, call.is_send);
}

thread_local int group_depth = 0;
thread_local std::vector<Call>* group = nullptr;  // between the first call and the launch

int launch() {
  // All calls of a communicator in one piece, in order.
  std::vector<std::vector<Call>> launches;
  const std::unique_ptr<std::vector<Call>> given(std::exchange(group, nullptr));
  if (!given) return kSuccess;
  for (Call& call : *given) {
    const auto same = [&](const auto& one) { return one.front().comm == call.comm; };
    auto found = launches.begin();
    while (found != launches.end() && !same(*found)) ++found;
    if (found == launches.end()) found = launches.emplace(found);
    found->push_back(std::move(call));
  }
  for (auto& calls : launches) {
    Comm& comm = *calls.front().comm;
    for (const Call& call : calls) {
      if (call.is_send == calls.front().is_send && call.stream == calls.front().stream) continue;
      violate("a group sends and receives on one communicator, or uses two streams");
      return kInvalidUsage;
    }
    void* stream = calls.front().stream;
    if (comm.outstanding++ > 0 && comm.stream != stream) {
      violate("a communicator is used on two streams at once");
    }
    comm.stream = stream;
    static_cast<Stream*>(stream)->push([calls = std::move(calls), &comm]() mutable {
      for (Call& call : calls) {
        if (!comm.aborted) run_call(call);
      }
      --comm.outstanding;
    });
  }
  return kSuccess;
}

int add_call(bool is_send, char* data, std::size_t count, int type, int peer, void* comm_handle,
             void* stream) {
  const auto comm = find(comm_handle);
  if (!comm) {
    violate("a message on a communicator that is not there");
    return kInvalidArgument;
  }
  if (type != 0 || data == nullptr || count == 0 || stream == nullptr) {
    violate("a message without bytes or stream, or of another type than int8");
    return kInvalidArgument;
  }
  if (comm->num_ranks != 2 || peer != 1 - comm->rank) {
    violate("a message to rank " + std::to_string(peer) + " of a communicator");
    return kInvalidArgument;
  }
  if (group == nullptr) group = new std::vector<Call>;
  group->push_back({comm, stream, is_send, data, count, next_injection("")});
  return group_depth == 0 ? launch() : kSuccess;
}

}  // namespace

// ----- the test's own functions

FAKE_API const int sluice_moves_host_memory = 1;
FAKE_API int fake_nccl_violations() { return violations; }
FAKE_API int fake_nccl_live_comms() {
  const std::lock_guard lock(registry().mutex);
  return static_cast<int>(registry().live.size());
}
FAKE_API void fake_nccl_inject(const char* what, int after) {
  const std::lock_guard lock(injection_mutex);
  injection() = *what == '\0' ? std::nullopt : std::optional<Injection>(Injection{what, after});
}

// ----- NCCL

struct UniqueId {
  std::array<char, 128> bytes;
};

FAKE_API int ncclGetVersion(int* version) {
  *version = 22703;
  return kSuccess;
}

FAKE_API const char* ncclGetErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "unhandled system error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemote:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

FAKE_API int ncclGetUniqueId(UniqueId* id) {
  std::random_device random;
  std::string name = "sluice-fake-nccl-";
  for (int i = 0; i < 6; ++i) name += std::to_string(random()) + "-";
  *id = {};
  std::memcpy(id->bytes.data(), name.data(), name.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, length);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener, 1) != 0) {
    close(listener);
    return kSystemError;
  }
  const std::lock_guard lock(registry().mutex);
  registry().listeners[name] = listener;
  return kSuccess;
}

FAKE_API int ncclCommInitRank(void** comm_handle, int num_ranks, UniqueId id, int rank) {
  const std::string injected = next_injection("init-");
  if (injected == "init-error") return kSystemError;
  while (injected == "init-hang") usleep(100000);
  if (group_depth != 0 || num_ranks < 1 || num_ranks > 2 || rank < 0 || rank >= num_ranks) {
    violate("a communicator of " + std::to_string(num_ranks) + " ranks, or inside a group");
    return kInvalidArgument;
  }
  const std::string name(id.bytes.data());
  auto comm = std::make_shared<Comm>();
  comm->rank = rank;
  comm->num_ranks = num_ranks;
  if (rank == 0) {
    int listener = -1;
    {
      const std::lock_guard lock(registry().mutex);
      const auto found = registry().listeners.find(name);
      if (found == registry().listeners.end()) {
        violate("an id that this process did not make, or one used twice");
        return kInvalidArgument;
      }
      listener = found->second;
      registry().listeners.erase(found);
    }
    if (num_ranks == 2) comm->fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    close(listener);
  } else {
    comm->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    const sockaddr_un address = address_of(name, length);
    if (connect(comm->fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      violate("nobody waits for this id");
      return kSystemError;
    }
  }
  const std::lock_guard lock(registry().mutex);
  registry().live[comm.get()] = comm;
  *comm_handle = comm.get();
  return kSuccess;
}

FAKE_API int ncclCommDestroy(void* comm_handle) {
  const auto comm = find(comm_handle);
  if (!comm) {
    violate("a communicator is destroyed that is not there");
    return kInvalidArgument;
  }
  if (comm->outstanding != 0) violate("a communicator is destroyed with messages on their way");
  comm->aborted = true;
  const std::lock_guard lock(registry().mutex);
  registry().live.erase(comm.get());
  return kSuccess;
}

FAKE_API int ncclCommAbort(void* comm_handle) {
  const auto comm = find(comm_handle);
  if (!comm) {
    violate("a communicator is aborted that is not there");
    return kInvalidArgument;
  }
  comm->aborted = true;
  while (comm->outstanding > 0) usleep(200);
  const std::lock_guard lock(registry().mutex);
  registry().live.erase(comm.get());
  return kSuccess;
}

FAKE_API int ncclCommGetAsyncError(void* comm_handle, int* error) {
  const auto comm = find(comm_handle);
  if (!comm) return kInvalidArgument;
  *error = comm->error;
  return kSuccess;
}

FAKE_API int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}

FAKE_API int ncclGroupEnd() {
  if (group_depth == 0) {
    violate("a group ends that did not begin");
    return kInvalidUsage;
  }
  return --group_depth == 0 ? launch() : kSuccess;
}

FAKE_API int ncclSend(const void* data, std::size_t count, int type, int peer, void* comm,
                      void* stream) {
  return add_call(true, static_cast<char*>(const_cast<void*>(data)), count, type, peer, comm,
                  stream);
}

FAKE_API int ncclRecv(void* data, std::size_t count, int type, int peer, void* comm, void* stream) {
  return add_call(false, static_cast<char*>(data), count, type, peer, comm, stream);
}

// ----- CUDA's runtime

namespace {
int num_gpus() {
  const char* text = std::getenv("SLUICE_FAKE_GPUS");
  return text == nullptr ? 8 : std::atoi(text);
}
}  // namespace

FAKE_API int cudaGetDeviceCount(int* count) {
  *count = num_gpus();
  return kCudaSuccess;
}

FAKE_API int cudaSetDevice(int device) {
  return device >= 0 && device < num_gpus() ? kCudaSuccess : kCudaInvalidDevice;
}

FAKE_API int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (device < 0 || device >= num_gpus()) return kCudaInvalidDevice;
  std::snprintf(text, static_cast<std::size_t>(length), "fake:%02d:00.0", device);
  return kCudaSuccess;
}

FAKE_API int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  if (flags != 1) violate("a stream that waits for the default stream");
  *stream = Stream::make();
  return kCudaSuccess;
}

FAKE_API int cudaStreamDestroy(void* stream) {
  static_cast<Stream*>(stream)->end();
  return kCudaSuccess;
}

FAKE_API int cudaEventCreateWithFlags(void** event, unsigned /*flags*/) {
  *event = new Event;
  return kCudaSuccess;
}

FAKE_API int cudaEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return kCudaSuccess;
}

/// The default stream holds what the host computes itself: that is done.
FAKE_API int cudaEventRecord(void* event, void* stream) {
  auto marker = std::make_shared<Marker>();
  if (stream == nullptr) {
    marker->done = true;
  } else {
    static_cast<Stream*>(stream)->push([marker] { marker->done = true; });
  }
  auto* one = static_cast<Event*>(event);
  const std::lock_guard lock(one->mutex);
  one->marker = std::move(marker);
  return kCudaSuccess;
}

FAKE_API int cudaStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  auto* one = static_cast<Event*>(event);
  std::shared_ptr<Marker> marker;
  {
    const std::lock_guard lock(one->mutex);
    marker = one->marker;
  }
  if (!marker) return kCudaSuccess;
  static_cast<Stream*>(stream)->push([marker] {
    while (!marker->done) usleep(10);
  });
  return kCudaSuccess;
}

FAKE_API int cudaEventQuery(void* event) {
  auto* one = static_cast<Event*>(event);
  const std::lock_guard lock(one->mutex);
  return !one->marker || one->marker->done ? kCudaSuccess : kNotReady;
}

FAKE_API int cudaHostAlloc(void** data, std::size_t num_bytes, unsigned /*flags*/) {
  *data = std::malloc(num_bytes);
  return *data == nullptr ? kCudaInvalidValue : kCudaSuccess;
}

FAKE_API int cudaFreeHost(void* data) {
  std::free(data);
  return kCudaSuccess;
}

FAKE_API const char* cudaGetErrorString(int error) {
  return error == kCudaInvalidDevice ? "invalid device ordinal" : "unknown error";
}
