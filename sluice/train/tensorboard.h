// tensorboard.h - scalars as a TensorBoard event file. Free of torch.
//
// A file is a sequence of records: u64 length, u32 masked CRC-32C of the length, the bytes of one
// protobuf Event, u32 masked CRC-32C of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

/// CRC-32C (Castagnoli) of bytes.
std::uint32_t crc32c(std::span<const std::byte> bytes);

/// A record around the bytes of an event.
std::string event_record(std::string_view event);
/// The event every file begins with.
std::string version_event(double wall_seconds);
/// An event that sets `tag` to `value` at `step`.
std::string scalar_event(double wall_seconds, std::int64_t step, std::string_view tag, float value);

/// Writes scalars into a new file in `folder`. A resumed run adds another file; TensorBoard joins
/// them.
class TensorBoardWriter {
 public:
  /// Throws: Failure when the file cannot be made.
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Throws: Failure with the system's reason.
  void add(std::int64_t step, std::string_view tag, double value);

 private:
  void append(std::string_view bytes);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace sluice
