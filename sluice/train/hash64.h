// hash64.h - XXH64, the checksum of checkpoints and the hash behind every seeded choice. Read next:
// files.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

/// XXH64 of bytes that arrive in pieces: any cut into pieces gives the same digest. The hash is
/// that of `xxh64sum`, so that checkpoints can be checked without sluice.
class Hash64 {
 public:
  explicit Hash64(std::uint64_t seed = 0);
  ~Hash64();
  Hash64(Hash64&&) noexcept;
  Hash64& operator=(Hash64&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// Digest of everything so far; more may follow.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
[[nodiscard]] std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0);

/// 16 lower-case hexadecimal digits, as xxh64sum prints them.
[[nodiscard]] std::string hash_text(std::uint64_t hash);

}  // namespace sluice
