#include "sluice/runtime/io_ring.h"

#if __has_include(<linux/io_uring.h>)

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice {
namespace {

/// A part of the ring that the kernel shares.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int file, std::uint64_t offset, std::size_t size) : size_(size) {
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file,
                    static_cast<off_t>(offset));
    if (at != MAP_FAILED) at_ = static_cast<std::byte*>(at);
  }
  Mapping(Mapping&& other) noexcept : at_(std::exchange(other.at_, nullptr)), size_(other.size_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping() {
    if (at_ != nullptr) munmap(at_, size_);
  }

  explicit operator bool() const { return at_ != nullptr; }
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(at_ + offset);
  }

 private:
  std::byte* at_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

struct IoRing::Impl {
  ~Impl() {
    if (file >= 0) close(file);
  }

  int file = -1;
  io_uring_params params{};
  Mapping requests, results, entries;

  template <typename T>
  T* of_requests(std::uint32_t offset) const {
    return requests.at<T>(offset);
  }
  template <typename T>
  T* of_results(std::uint32_t offset) const {
    return results.at<T>(offset);
  }
};

IoRing::IoRing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
IoRing::~IoRing() = default;

std::unique_ptr<IoRing> IoRing::open(unsigned most_requests) {
  auto impl = std::make_unique<Impl>();
  io_uring_params& params = impl->params;
  impl->file = static_cast<int>(syscall(SYS_io_uring_setup, most_requests, &params));
  // The plain read and write requests came with this feature.
  if (impl->file < 0 || (params.features & IORING_FEAT_RW_CUR_POS) == 0) return nullptr;
  impl->requests = Mapping(impl->file, IORING_OFF_SQ_RING,
                           params.sq_off.array + params.sq_entries * sizeof(std::uint32_t));
  impl->results = Mapping(impl->file, IORING_OFF_CQ_RING,
                          params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  impl->entries = Mapping(impl->file, IORING_OFF_SQES, params.sq_entries * sizeof(io_uring_sqe));
  if (!impl->requests || !impl->results || !impl->entries) return nullptr;
  return std::unique_ptr<IoRing>(new IoRing(std::move(impl)));
}

bool IoRing::submit(bool write, int file, std::byte* data, std::size_t length, std::int64_t offset,
                    std::uint64_t id) {
  const Impl& ring = *impl_;
  const std::atomic_ref tail(*ring.of_requests<std::uint32_t>(ring.params.sq_off.tail));
  const std::uint32_t place = tail.load(std::memory_order_relaxed);
  const std::uint32_t index =
      place & *ring.of_requests<std::uint32_t>(ring.params.sq_off.ring_mask);
  auto& entry = *ring.entries.at<io_uring_sqe>(index * sizeof(io_uring_sqe));
  std::memset(&entry, 0, sizeof(entry));
  entry.opcode = write ? IORING_OP_WRITE : IORING_OP_READ;
  entry.fd = file;
  entry.addr = reinterpret_cast<std::uint64_t>(data);
  entry.len = static_cast<std::uint32_t>(length);
  entry.off = static_cast<std::uint64_t>(offset);
  entry.user_data = id;
  ring.of_requests<std::uint32_t>(ring.params.sq_off.array)[index] = index;
  tail.store(place + 1, std::memory_order_release);
  while (true) {
    const auto taken = syscall(SYS_io_uring_enter, ring.file, 1, 0, 0, nullptr, 0);
    if (taken == 1) return true;
    if (taken < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    tail.store(place, std::memory_order_release);  // nobody has taken it
    return false;
  }
}

IoRing::Done IoRing::wait() {
  const Impl& ring = *impl_;
  const std::atomic_ref head(*ring.of_results<std::uint32_t>(ring.params.cq_off.head));
  const std::atomic_ref tail(*ring.of_results<std::uint32_t>(ring.params.cq_off.tail));
  const std::uint32_t place = head.load(std::memory_order_relaxed);
  while (tail.load(std::memory_order_acquire) == place) {
    syscall(SYS_io_uring_enter, ring.file, 0, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
  }
  const std::uint32_t index = place & *ring.of_results<std::uint32_t>(ring.params.cq_off.ring_mask);
  const io_uring_cqe& result = ring.of_results<io_uring_cqe>(ring.params.cq_off.cqes)[index];
  const Done done{result.user_data, result.res};
  head.store(place + 1, std::memory_order_release);
  return done;
}

}  // namespace sluice

#else

namespace sluice {

struct IoRing::Impl {};
IoRing::IoRing(std::unique_ptr<Impl>) {}
IoRing::~IoRing() = default;
std::unique_ptr<IoRing> IoRing::open(unsigned) { return nullptr; }
bool IoRing::submit(bool, int, std::byte*, std::size_t, std::int64_t, std::uint64_t) {
  return false;
}
IoRing::Done IoRing::wait() { return {}; }

}  // namespace sluice

#endif
