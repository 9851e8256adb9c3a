#include "sluice/runtime/far_store.h"

#include <sys/mman.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <unordered_map>
#include <utility>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr double kMiB = 1 << 20;

class GrowingStore final : public FarStore {
 public:
  void write(std::size_t unit, const ConstParts& parts) override {
    std::vector<std::byte>& held = held_[unit];
    held.clear();
    for (const auto& part : parts) held.insert(held.end(), part.begin(), part.end());
    capacity_ += static_cast<std::int64_t>(held.size());
  }
  void read(std::size_t unit, const Parts& parts) override {
    const std::vector<std::byte>& held = held_.at(unit);
    std::size_t at = 0;
    for (const auto& part : parts) {
      SLUICE_CHECK(at + part.size() <= held.size(), "{} bytes were written", held.size());
      std::memcpy(part.data(), held.data() + at, part.size());
      at += part.size();
    }
    capacity_ -= static_cast<std::int64_t>(held.size());
    held_.erase(unit);
  }
  std::int64_t capacity() const override { return capacity_; }

 private:
  std::unordered_map<std::size_t, std::vector<std::byte>> held_;
  std::int64_t capacity_ = 0;
};

class HostStore final : public FarStore {
 public:
  explicit HostStore(const OffloadSlots& slots) : slots_(slots) {
    check_far_room(slots.capacity, "");
    if (slots.capacity == 0) return;
    void* block = mmap(nullptr, static_cast<std::size_t>(slots.capacity), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
      throw InvalidArgument(fmt::format(
          "the host pool for offload needs {:.1f} MiB and the system refuses ({}): lower "
          "pipeline.offload, or set pipeline.offload_tier = \"disk\"",
          static_cast<double>(slots.capacity) / kMiB, std::strerror(errno)));
    }
    block_ = static_cast<std::byte*>(block);
  }
  ~HostStore() override {
    if (block_ != nullptr) munmap(block_, static_cast<std::size_t>(slots_.capacity));
  }
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  void write(std::size_t unit, const ConstParts& parts) override {
    std::byte* to = place(unit, parts);
    for (const auto& part : parts) {
      std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
  }
  void read(std::size_t unit, const Parts& parts) override {
    const std::byte* from = place(unit, parts);
    for (const auto& part : parts) {
      std::memcpy(part.data(), from, part.size());
      from += part.size();
    }
  }
  std::int64_t capacity() const override { return slots_.capacity; }

 private:
  template <typename AnyParts>
  std::byte* place(std::size_t unit, const AnyParts& parts) const {
    std::size_t total = 0;
    for (const auto& part : parts) total += part.size();
    SLUICE_CHECK(slots_.offset[unit] >= 0 && total <= static_cast<std::size_t>(slots_.size[unit]),
                 "{} bytes of activations where {} were planned", total, slots_.size[unit]);
    return block_ + slots_.offset[unit];
  }

  OffloadSlots slots_;
  std::byte* block_ = nullptr;
};

// What the system would give without swapping.
std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kilobytes = 0;
  std::string unit;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return -1;
}

}  // namespace

void check_far_room(std::int64_t num_bytes, const std::string& folder) {
  if (folder.empty()) {
    const std::int64_t available = available_memory();
    if (available >= 0 && num_bytes > available) {
      throw InvalidArgument(fmt::format(
          "offload to host memory needs {:.1f} MiB and {:.1f} MiB are free: lower "
          "pipeline.offload, or set pipeline.offload_tier = \"disk\"",
          static_cast<double>(num_bytes) / kMiB, static_cast<double>(available) / kMiB));
    }
    return;
  }
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) {
    throw InvalidArgument(
        fmt::format("{}: {}; set pipeline.offload_dir to a folder that can be written", folder,
                    std::strerror(errno)));
  }
  const double available = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (static_cast<double>(num_bytes) > available) {
    throw InvalidArgument(fmt::format(
        "offload to {} needs {:.1f} MiB and {:.1f} MiB are free: lower pipeline.offload, or set "
        "pipeline.offload_dir to a folder on another disk",
        folder, static_cast<double>(num_bytes) / kMiB, available / kMiB));
  }
}

std::unique_ptr<FarStore> make_growing_store() { return std::make_unique<GrowingStore>(); }

std::unique_ptr<FarStore> make_host_store(const OffloadSlots& slots) {
  return std::make_unique<HostStore>(slots);
}

}  // namespace sluice
