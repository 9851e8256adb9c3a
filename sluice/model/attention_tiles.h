// attention_tiles.h - how CPU attention is cut into tiles of scores. Free of torch. Read next:
// attention_cpu.h.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice {

/// Rows (queries) and columns (keys) of a tile of scores, so that a tile and what meets it stay in
/// a core's second-level cache.
inline constexpr std::int64_t kScoreRows = 64;
inline constexpr std::int64_t kScoreColumns = 512;

/// Elements of one tile for slices of `tokens` tokens. Forward works in one, backward in two.
inline std::int64_t score_tile_size(std::int64_t tokens) {
  return std::min(tokens, kScoreRows) * std::min(tokens, kScoreColumns);
}

}  // namespace sluice
