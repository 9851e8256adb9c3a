#include "sluice/train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "sluice/common/errors.h"
#include "sluice/train/files.h"

namespace sluice {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli, bits reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(crc, 15) + 0xA282EAD8;
}

template <typename T>
void append_raw(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>((value & 0x7F) | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

/// A field that holds bytes: text or another message.
void append_bytes(std::string& out, std::uint8_t key, std::string_view bytes) {
  out += static_cast<char>(key);
  append_varint(out, bytes.size());
  out += bytes;
}

/// An event's wall time, field 1.
std::string event_start(double wall_seconds) {
  std::string event;
  event += '\x09';
  append_raw(event, wall_seconds);
  return event;
}

double wall_seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xFF];
  }
  return crc ^ 0xFFFFFFFF;
}

std::string event_record(std::string_view event) {
  std::string record;
  append_raw(record, static_cast<std::uint64_t>(event.size()));
  append_raw(record, masked_crc(record));
  record += event;
  append_raw(record, masked_crc(event));
  return record;
}

std::string version_event(double wall_seconds) {
  std::string event = event_start(wall_seconds);
  append_bytes(event, 0x1A, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_seconds, std::int64_t step, std::string_view tag,
                         float value) {
  std::string scalar;
  append_bytes(scalar, 0x0A, tag);
  scalar += '\x15';
  append_raw(scalar, value);
  std::string summary;
  append_bytes(summary, 0x0A, scalar);
  std::string event = event_start(wall_seconds);
  event += '\x10';
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, 0x2A, summary);
  return event;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder) {
  make_folders(folder);
  // Readers sort the files of a folder by name, so the time comes first; a second run within the
  // same second gets a name of its own.
  const auto seconds = static_cast<std::int64_t>(wall_seconds_now());
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    path_ = folder / fmt::format("events.out.tfevents.{}.sluice.{}", seconds, attempt);
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) {
      throw Failure(fmt::format("cannot create {}: {}", path_.string(),
                                std::generic_category().message(errno)));
    }
  }
  append(event_record(version_event(wall_seconds_now())));
}

TensorBoardWriter::~TensorBoardWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void TensorBoardWriter::add(std::int64_t step, std::string_view tag, double value) {
  append(event_record(scalar_event(wall_seconds_now(), step, tag, static_cast<float>(value))));
}

void TensorBoardWriter::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Failure(fmt::format("cannot write {}: {}; free space or set run.dir to another disk",
                                path_.string(), std::generic_category().message(errno)));
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace sluice
