// The disk tier: one file per rank, written and read by the rank's helper thread.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "sluice/common/errors.h"
#include "sluice/runtime/far_store.h"
#include "sluice/runtime/io_ring.h"

namespace sluice {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;  // of one write or read
constexpr std::size_t kNumBuffers = 4;                // chunks under way at once

class DiskStore final : public FarStore {
 public:
  DiskStore(const OffloadSlots& slots, const std::string& folder, DiskAccess access)
      : slots_(slots),
        folder_(folder.empty() ? "." : folder),
        block_(static_cast<std::byte*>(
            std::aligned_alloc(static_cast<std::size_t>(kFarAlignment), kNumBuffers * kChunk))),
        ring_(access == DiskAccess::kAsync ? IoRing::open(kNumBuffers) : nullptr) {
    SLUICE_CHECK(block_ != nullptr, "no memory for the disk tier");
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

  // While the disk takes one chunk the next ones are filled.
  void write(std::size_t unit, const ConstParts& parts) override {
    const AllSettled settled(*this);
    std::int64_t at = offset_of(unit, parts);
    std::size_t buffer = 0;
    std::size_t filled = 0;
    const auto flush = [&] {
      start(buffer, /*write=*/true, at, filled);
      at += static_cast<std::int64_t>(filled);
      filled = 0;
      buffer = (buffer + 1) % kNumBuffers;
      settle(buffer);
    };
    for (auto part : parts) {
      while (!part.empty()) {
        const std::size_t count = std::min(part.size(), kChunk - filled);
        std::memcpy(data_of(buffer) + filled, part.data(), count);
        part = part.subspan(count);
        filled += count;
        if (filled == kChunk) flush();
      }
    }
    if (filled > 0) flush();
    for (std::size_t other = 0; other < kNumBuffers; ++other) settle(other);
    drop_pages(unit);
  }

  // While one chunk is taken out of its buffer the disk fills the next ones.
  void read(std::size_t unit, const Parts& parts) override {
    const AllSettled settled(*this);
    std::int64_t at = offset_of(unit, parts);
    std::size_t left = 0;  // of the whole, not yet asked for
    for (const auto& part : parts) left += part.size();
    std::size_t next = 0;
    const auto ask = [&] {
      if (left == 0) return;
      const std::size_t count = std::min(left, kChunk);
      start(next, /*write=*/false, at, count);
      at += static_cast<std::int64_t>(count);
      left -= count;
      next = (next + 1) % kNumBuffers;
    };
    for (std::size_t ahead = 0; ahead < kNumBuffers; ++ahead) ask();
    std::size_t buffer = 0;
    std::size_t used = 0;
    settle(buffer);
    for (auto part : parts) {
      while (!part.empty()) {
        if (used == buffers_[buffer].count) {
          ask();  // into this buffer, which is the next one
          buffer = (buffer + 1) % kNumBuffers;
          used = 0;
          settle(buffer);
        }
        const std::size_t count = std::min(part.size(), buffers_[buffer].count - used);
        std::memcpy(part.data(), data_of(buffer) + used, count);
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

  std::byte* data_of(std::size_t buffer) const { return block_.get() + buffer * kChunk; }

  /// A chunk on its way between a buffer and the file.
  struct Buffer {
    bool under_way = false;
    bool write = false;
    std::int64_t at = 0;
    std::size_t count = 0;  // bytes that matter
  };

  /// Before a call ends, by an error too, the kernel has let go of all buffers.
  struct AllSettled {
    explicit AllSettled(DiskStore& owner) : store(owner) {}
    ~AllSettled() {
      while (store.num_under_way_ > 0) {
        store.buffers_[store.ring_->wait().id].under_way = false;
        --store.num_under_way_;
      }
    }
    AllSettled(const AllSettled&) = delete;
    AllSettled& operator=(const AllSettled&) = delete;
    DiskStore& store;
  };

  // REQUIRES: the buffer is settled.
  void start(std::size_t buffer, bool write, std::int64_t at, std::size_t count) {
    buffers_[buffer] = {false, write, at, count};
    if (ring_ && ring_->submit(write, file_, data_of(buffer), whole_blocks(count), at, buffer)) {
      buffers_[buffer].under_way = true;
      ++num_under_way_;
    } else {
      transfer(buffer, 0);
    }
  }

  // Waits for the chunk of the buffer; whatever else is over meanwhile is looked after.
  void settle(std::size_t buffer) {
    while (buffers_[buffer].under_way) {
      const IoRing::Done done = ring_->wait();
      Buffer& other = buffers_[done.id];
      other.under_way = false;
      --num_under_way_;
      // What failed or stopped short is gone on with here, where errors get their words.
      const auto moved = static_cast<std::size_t>(std::max<std::int64_t>(0, done.result));
      if (moved < whole_blocks(other.count)) transfer(done.id, moved);
    }
  }

  // The system may stop short or be interrupted.
  void transfer(std::size_t buffer, std::size_t done) {
    const Buffer& chunk = buffers_[buffer];
    const std::size_t length = whole_blocks(chunk.count);
    while (done < length) {
      std::byte* data = data_of(buffer) + done;
      const std::int64_t at = chunk.at + static_cast<std::int64_t>(done);
      const ssize_t moved = chunk.write ? pwrite(file_, data, length - done, at)
                                        : pread(file_, data, length - done, at);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0 && errno == EINVAL && direct_) {
        // The file system takes direct access at open and refuses it here.
        fcntl(file_, F_SETFL, 0);
        direct_ = false;
        continue;
      }
      if (moved <= 0) {
        throw Failure(fmt::format(
            "the offload file in {} cannot be {}: {}; the last checkpoint is whole", folder_,
            chunk.write ? "written" : "read", moved == 0 ? "it ends early" : std::strerror(errno)));
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
  std::unique_ptr<std::byte, Free> block_;  // kNumBuffers chunks
  std::array<Buffer, kNumBuffers> buffers_;
  std::size_t num_under_way_ = 0;
  std::unique_ptr<IoRing> ring_;  // null: one request after the other
};

}  // namespace

std::unique_ptr<FarStore> make_disk_store(const OffloadSlots& slots, const std::string& folder,
                                          DiskAccess access) {
  return std::make_unique<DiskStore>(slots, folder, access);
}

}  // namespace sluice
