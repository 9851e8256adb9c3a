#include "sluice/train/tokens.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/files.h"
#include "sluice/train/hash64.h"

namespace sluice {
namespace {

/// Widens `count` tokens of type T. Returns whether all are in [0, vocab_size).
template <typename T>
bool widen(const std::byte* data, std::int64_t vocab_size, std::span<std::int64_t> out) {
  bool all_good = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, data + i * sizeof(T), sizeof(T));
    out[i] = static_cast<std::int64_t>(token);
    all_good &= out[i] >= 0 && out[i] < vocab_size;
  }
  return all_good;
}

bool widen(TokenType type, const std::byte* data, std::int64_t vocab_size,
           std::span<std::int64_t> out) {
  switch (type) {
    case TokenType::kU8:
      return widen<std::uint8_t>(data, vocab_size, out);
    case TokenType::kI8:
      return widen<std::int8_t>(data, vocab_size, out);
    case TokenType::kU16:
      return widen<std::uint16_t>(data, vocab_size, out);
    case TokenType::kI16:
      return widen<std::int16_t>(data, vocab_size, out);
    case TokenType::kU32:
      return widen<std::uint32_t>(data, vocab_size, out);
    case TokenType::kI32:
      return widen<std::int32_t>(data, vocab_size, out);
    case TokenType::kI64:
      return widen<std::int64_t>(data, vocab_size, out);
  }
  return false;
}

[[noreturn]] void refuse_token(const TokenSegment& segment, std::int64_t first,
                               std::span<const std::int64_t> tokens, std::int64_t vocab_size) {
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [vocab_size](std::int64_t token) {
    return token < 0 || token >= vocab_size;
  });
  const std::int64_t index = first + (bad - tokens.begin());
  throw Failure(
      fmt::format("{}: the token {} at byte {} is outside the vocabulary; tokens must be from 0 to "
                  "model.vocab_size - 1 = {}",
                  segment.path, *bad, segment.file_offset + index * num_bytes_of(segment.type),
                  vocab_size - 1));
}

}  // namespace

std::int64_t num_bytes_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kU16:
    case TokenType::kI16:
      return 2;
    case TokenType::kU32:
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

TokenSource::TokenSource(std::vector<TokenSegment> segments, std::int64_t vocab_size) {
  auto stream = std::make_shared<Stream>();
  stream->vocab_size = vocab_size;
  for (TokenSegment& segment : segments) {
    if (segment.count == 0) continue;
    stream->begins.push_back(num_tokens_);
    num_tokens_ += segment.count;
    stream->segments.push_back(std::move(segment));
  }
  stream_ = std::move(stream);
}

void TokenSource::read(std::int64_t first, std::span<std::int64_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  SLUICE_CHECK(first >= 0 && count <= num_tokens_ - first, "tokens {} + {} of {}", first, count,
               num_tokens_);
  if (count == 0) return;
  std::int64_t position = first_ + first;
  const auto after = std::upper_bound(stream_->begins.begin(), stream_->begins.end(), position);
  auto index = static_cast<std::size_t>(after - stream_->begins.begin()) - 1;
  while (!out.empty()) {
    const TokenSegment& segment = stream_->segments[index];
    const std::int64_t inside = position - stream_->begins[index];
    const auto piece = out.first(static_cast<std::size_t>(
        std::min<std::int64_t>(segment.count - inside, static_cast<std::int64_t>(out.size()))));
    if (!widen(segment.type, segment.data + inside * num_bytes_of(segment.type),
               stream_->vocab_size, piece)) {
      refuse_token(segment, inside, piece, stream_->vocab_size);
    }
    position += static_cast<std::int64_t>(piece.size());
    out = out.subspan(piece.size());
    ++index;
  }
}

TokenSource TokenSource::part(std::int64_t first, std::int64_t count) const {
  SLUICE_CHECK(first >= 0 && count >= 0 && count <= num_tokens_ - first, "part {} + {} of {}",
               first, count, num_tokens_);
  TokenSource result = *this;
  result.first_ = first_ + first;
  result.num_tokens_ = count;
  return result;
}

std::string TokenSource::digest() const {
  Hash64 hash;
  const auto add = [&hash](std::int64_t value) {
    hash.update(std::as_bytes(std::span(&value, 1)));
  };
  add(first_);
  add(num_tokens_);
  if (stream_ != nullptr) {
    for (const TokenSegment& segment : stream_->segments) {
      const std::string name = std::filesystem::path(segment.path).filename().string();
      add(static_cast<std::int64_t>(name.size()));
      hash.update(std::as_bytes(std::span(name)));
      add(segment.count);
      add(num_bytes_of(segment.type));
    }
  }
  return hash_text(hash.digest());
}

}  // namespace sluice
