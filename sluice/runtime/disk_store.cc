// The disk tier: one file per rank, written and read by the rank's helper thread.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "sluice/common/errors.h"
#include "sluice/runtime/far_store.h"

namespace sluice {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;  // of one write or read

class DiskStore final : public FarStore {
 public:
  DiskStore(const OffloadSlots& slots, const std::string& folder)
      : slots_(slots),
        folder_(folder.empty() ? "." : folder),
        chunk_(static_cast<std::byte*>(
            std::aligned_alloc(static_cast<std::size_t>(kFarAlignment), kChunk))) {
    SLUICE_CHECK(chunk_ != nullptr, "no memory for the disk tier");
    check_far_room(slots.capacity, folder_);
    open_file();
    if (slots.capacity == 0) return;
    if (const int error = posix_fallocate(file_, 0, slots.capacity); error != 0) {
      const std::string why = std::strerror(error);
      close(file_);
      throw InvalidArgument(
          fmt::format("{}: cannot reserve {} bytes for offload: {}; lower pipeline.offload, or set "
                      "pipeline.offload_dir to a folder on another disk",
                      name_, slots.capacity, why));
    }
  }
  ~DiskStore() override { close(file_); }
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  void write(std::size_t unit, const ConstParts& parts) override {
    std::int64_t at = offset_of(unit, parts);
    std::size_t filled = 0;
    for (auto part : parts) {
      while (!part.empty()) {
        const std::size_t count = std::min(part.size(), kChunk - filled);
        std::memcpy(chunk_.get() + filled, part.data(), count);
        part = part.subspan(count);
        filled += count;
        if (filled == kChunk) {
          write_chunk(at, filled);
          at += static_cast<std::int64_t>(filled);
          filled = 0;
        }
      }
    }
    if (filled > 0) write_chunk(at, filled);
    drop_pages(unit);
  }

  void read(std::size_t unit, const Parts& parts) override {
    std::int64_t at = offset_of(unit, parts);
    std::size_t left = 0;  // of the whole
    for (const auto& part : parts) left += part.size();
    std::size_t ready = 0;
    std::size_t used = 0;
    for (auto part : parts) {
      while (!part.empty()) {
        if (used == ready) {
          ready = std::min(left, kChunk);
          read_chunk(at, ready);
          at += static_cast<std::int64_t>(ready);
          left -= ready;
          used = 0;
        }
        const std::size_t count = std::min(part.size(), ready - used);
        std::memcpy(part.data(), chunk_.get() + used, count);
        part = part.subspan(count);
        used += count;
      }
    }
    drop_pages(unit);
  }

  std::int64_t capacity() const override { return slots_.capacity; }

 private:
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };

  // A file that never has a name where the system can do that; otherwise the name goes at once.
  void open_file() {
    name_ = folder_ + "/sluice-offload-XXXXXX";
    file_ = open(folder_.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    direct_ = file_ >= 0;
    if (file_ < 0) file_ = open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file_ >= 0) return;
    std::string name = name_;
    file_ = mkstemp(name.data());
    if (file_ < 0) {
      throw InvalidArgument(fmt::format(
          "{}: cannot make a file for offload: {}; set pipeline.offload_dir to a folder that can "
          "be written",
          folder_, std::strerror(errno)));
    }
    unlink(name.c_str());
    direct_ = fcntl(file_, F_SETFL, O_DIRECT) == 0;
  }

  template <typename AnyParts>
  std::int64_t offset_of(std::size_t unit, const AnyParts& parts) const {
    std::size_t total = 0;
    for (const auto& part : parts) total += part.size();
    SLUICE_CHECK(slots_.offset[unit] >= 0 && total <= static_cast<std::size_t>(slots_.size[unit]),
                 "{} bytes of activations where {} were planned", total, slots_.size[unit]);
    return slots_.offset[unit];
  }

  // Places are whole blocks long, so the last write may be padded to one.
  static std::size_t whole_blocks(std::size_t count) {
    const auto block = static_cast<std::size_t>(kFarAlignment);
    return (count + block - 1) / block * block;
  }

  void write_chunk(std::int64_t at, std::size_t count) { transfer(pwrite, "write", at, count); }
  void read_chunk(std::int64_t at, std::size_t count) { transfer(pread, "read", at, count); }

  // The system may stop short or be interrupted.
  template <typename Call>
  void transfer(Call call, const char* what, std::int64_t at, std::size_t count) {
    const std::size_t length = whole_blocks(count);
    for (std::size_t done = 0; done < length;) {
      const ssize_t moved =
          call(file_, chunk_.get() + done, length - done, at + static_cast<std::int64_t>(done));
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EINVAL && direct_) {
        // The file system takes direct access at open and refuses it here.
        fcntl(file_, F_SETFL, 0);
        direct_ = false;
        continue;
      }
      if (moved <= 0) {
        throw Failure(
            fmt::format("the offload file in {} cannot be {}: {}; the last checkpoint is "
                        "whole",
                        folder_, what[0] == 'w' ? "written" : "read",
                        moved == 0 ? "it ends early" : std::strerror(errno)));
      }
      done += static_cast<std::size_t>(moved);
    }
  }

  // Without direct access the page cache would keep what was meant to leave memory.
  void drop_pages(std::size_t unit) {
    if (direct_) return;
    fdatasync(file_);
    posix_fadvise(file_, slots_.offset[unit], slots_.size[unit], POSIX_FADV_DONTNEED);
  }

  OffloadSlots slots_;
  std::string folder_;
  std::string name_;
  int file_ = -1;
  bool direct_ = false;
  std::unique_ptr<std::byte, Free> chunk_;
};

}  // namespace

std::unique_ptr<FarStore> make_disk_store(const OffloadSlots& slots, const std::string& folder) {
  return std::make_unique<DiskStore>(slots, folder);
}

}  // namespace sluice
