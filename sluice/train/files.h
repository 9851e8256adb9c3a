// files.h - mapped reading and durable writing of files, with errors that name the file and the
// reason. Read next: safetensors.h, tokens.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sluice/train/hash64.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little,
              "all file formats of this folder are little-endian and read by memcpy");

/// Value of type T at `offset`, which need not be aligned.
/// REQUIRES: offset + sizeof(T) <= bytes.size().
template <typename T>
T load_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// Text that came from a file, fit for one line of an error: control characters escaped, cut after
/// 120 bytes.
std::string printable(std::string_view text);

/// A whole file, mapped read-only. The file must not be truncated while it is mapped.
/// Threads: any.
class MappedFile {
 public:
  /// Throws: Failure when the path cannot be opened, or is not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// The text of a small file. Throws: Failure when it cannot be read or is larger than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes);

/// A new file that is written from front to back and hashed on the way. Not closing it is giving
/// up: the destructor closes the file and says nothing.
class FileWriter {
 public:
  /// Creates or truncates `path`. Throws: Failure with the system's reason.
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  /// Throws: Failure with the system's reason, such as no space left.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  /// Brings everything to the disk and closes the file. Throws: Failure.
  void close();

  std::int64_t num_bytes() const { return num_bytes_; }
  std::uint64_t checksum() const { return hash_.digest(); }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t num_bytes_ = 0;
  Hash64 hash_;
};

/// Brings the entries of a folder (new and renamed files) to the disk. Throws: Failure.
void sync_folder(const std::filesystem::path& folder);

/// Makes `folder` and its parents. Throws: Failure with the system's reason.
void make_folders(const std::filesystem::path& folder);

}  // namespace sluice
