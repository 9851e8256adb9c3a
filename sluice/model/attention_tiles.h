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

/// Elements of one tile for `queries` queries and at most `keys` keys in a slice. Forward works in
/// one tile, backward in two.
inline std::int64_t score_tile_size(std::int64_t queries, std::int64_t keys) {
  return std::min(queries, kScoreRows) * std::min(keys, kScoreColumns);
}

}  // namespace sluice
