#include "sluice/train/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw Failure(fmt::format("cannot {} {}: {}", what, path.string(), reason(error)));
}

/// A descriptor that is closed at the end of its scope.
struct Descriptor {
  int number;
  ~Descriptor() { ::close(number); }
};

int open_for_reading(const std::filesystem::path& path) {
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (number < 0) fail("open", path, errno);
  return number;
}

std::size_t regular_file_size(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Failure(fmt::format("cannot read {}: it is not a regular file", path.string()));
  }
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  std::string result;
  for (const char c : text.substr(0, kLongest)) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      result += fmt::format("\\x{:02x}", code);
    } else {
      result += c;
    }
  }
  return text.size() > kLongest ? result + "..." : result;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor descriptor{open_for_reading(path)};
  const std::size_t size = regular_file_size(descriptor.number, path);
  if (size == 0) return;  // an empty mapping is an error to the system, not to us
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.number, 0);
  if (data == MAP_FAILED) fail("map", path, errno);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  const Descriptor descriptor{open_for_reading(path)};
  const std::size_t size = regular_file_size(descriptor.number, path);
  if (size > static_cast<std::size_t>(max_bytes)) {
    throw Failure(fmt::format("cannot read {}: it has {} bytes, at most {} make sense",
                              path.string(), size, max_bytes));
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(descriptor.number, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

FileWriter::FileWriter(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create", path_, errno);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  // Pieces, so that hashing and writing find the bytes in the cache.
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    const ssize_t n = ::write(descriptor_, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path_, errno);
    const auto written = static_cast<std::size_t>(n);
    hash_.update(piece.first(written));
    num_bytes_ += n;
    bytes = bytes.subspan(written);
  }
}

void FileWriter::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void FileWriter::close() {
  SLUICE_CHECK(descriptor_ >= 0, "{} is closed already", path_.string());
  const int descriptor = std::exchange(descriptor_, -1);
  const int sync_error = ::fsync(descriptor) == 0 ? 0 : errno;
  // Some file systems report a failed write only here.
  const int close_error = ::close(descriptor) == 0 ? 0 : errno;
  if (sync_error != 0) fail("write", path_, sync_error);
  if (close_error != 0) fail("write", path_, close_error);
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor{open_for_reading(folder)};
  if (::fsync(descriptor.number) != 0) fail("write", folder, errno);
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Failure(fmt::format("cannot make folder {}: {}", folder.string(), error.message()));
  }
}

}  // namespace sluice
