#include "sluice/train/hash64.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sluice {

struct Hash64::State {
  XXH64_state_t xxh;
};

Hash64::Hash64(std::uint64_t seed) : state_(std::make_unique<State>()) {
  XXH64_reset(&state_->xxh, seed);
}
Hash64::~Hash64() = default;
Hash64::Hash64(Hash64&&) noexcept = default;
Hash64& Hash64::operator=(Hash64&&) noexcept = default;

void Hash64::update(std::span<const std::byte> bytes) {
  // The library takes null as an error, and an empty span may hold null.
  if (!bytes.empty()) XXH64_update(&state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t Hash64::digest() const { return XXH64_digest(&state_->xxh); }

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH64(bytes.empty() ? "" : static_cast<const void*>(bytes.data()), bytes.size(), seed);
}

std::uint64_t hash64(std::string_view text, std::uint64_t seed) {
  return hash64(std::as_bytes(std::span(text)), seed);
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace sluice
