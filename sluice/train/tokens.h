// tokens.h - one long stream of tokens from text or token files. Free of torch. Read next:
// batches.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/train/config.h"

namespace sluice {

/// How a token is stored in a file.
enum class TokenType : std::uint8_t { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };

std::int64_t num_bytes_of(TokenType type);

/// A run of tokens in memory or in a mapped file.
struct TokenSegment {
  std::shared_ptr<const void> owner;  // keeps `data` alive
  const std::byte* data = nullptr;    // not aligned
  TokenType type = TokenType::kU8;
  std::int64_t count = 0;
  std::string path;              // for errors
  std::int64_t file_offset = 0;  // byte of the file where the segment begins, for errors
};

/// A stream of tokens: segments end to end, or a part of them. Cheap to copy.
/// Threads: any.
class TokenSource {
 public:
  TokenSource() = default;
  /// `vocab_size` bounds what read() returns.
  TokenSource(std::vector<TokenSegment> segments, std::int64_t vocab_size);

  std::int64_t num_tokens() const { return num_tokens_; }

  /// Copies tokens [first, first + out.size()).
  /// REQUIRES: the range is inside the stream.
  /// Throws: Failure for a token outside [0, vocab_size), with its file, byte offset and value.
  void read(std::int64_t first, std::span<std::int64_t> out) const;

  /// The stream of tokens [first, first + count) of this one.
  TokenSource part(std::int64_t first, std::int64_t count) const;

  /// Hash of what the stream is made of: names of files without their folders, sizes and order. A
  /// resumed run compares it, so that a sample index keeps its meaning.
  std::string digest() const;

 private:
  struct Stream {
    std::vector<TokenSegment> segments;
    std::vector<std::int64_t> begins;  // first token of each segment
    std::int64_t vocab_size = 0;
  };
  std::shared_ptr<const Stream> stream_;
  std::int64_t first_ = 0;
  std::int64_t num_tokens_ = 0;
};

/// Training and validation streams of a run.
struct TokenSplit {
  TokenSource train;
  TokenSource validation;  // may be empty
  std::string summary;     // one line for the log: files, tokens, what was skipped
};

/// Opens what [data] names. Text is read as bytes, a document per file, a zero byte after each.
/// Without validation_paths, validation_fraction of the data is held back: whole files, chosen by a
/// hash of their relative path, for text of several files; else the end of the stream.
/// Throws: InvalidArgument for paths and formats that cannot work, Failure for damaged files.
TokenSplit open_tokens(const DataConfig& config, std::int64_t vocab_size);

}  // namespace sluice
