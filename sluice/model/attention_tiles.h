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

/// Elements of one tile for `queries` queries and at most `keys` keys in a slice.
inline std::int64_t score_tile_size(std::int64_t queries, std::int64_t keys) {
  return std::min(queries, kScoreRows) * std::min(keys, kScoreColumns);
}

/// Scratch of one call, in elements, and where its parts begin. With `parts` (earlier slices) a
/// partial result is made by itself before it is added; the parts start on cache lines.
struct AttentionScratch {
  std::int64_t dp = 0;          // backward: a second tile; the scores begin at 0
  std::int64_t rows = 0;        // of a block of queries: of out or dq
  std::int64_t dk = 0, dv = 0;  // backward: of all keys of a slice
  std::int64_t size = 0;

  static AttentionScratch forward(std::int64_t queries, std::int64_t keys, std::int64_t head_size,
                                  bool parts) {
    AttentionScratch scratch;
    scratch.size = score_tile_size(queries, keys);
    if (parts) scratch.add_rows(queries, head_size);
    return scratch;
  }
  static AttentionScratch backward(std::int64_t queries, std::int64_t keys, std::int64_t head_size,
                                   bool parts) {
    AttentionScratch scratch;
    scratch.dp = score_tile_size(queries, keys);
    scratch.size = 2 * scratch.dp;
    if (!parts) return scratch;
    scratch.add_rows(queries, head_size);
    scratch.dk = scratch.size;
    scratch.dv = scratch.dk + aligned(keys * head_size);
    scratch.size = scratch.dv + aligned(keys * head_size);
    return scratch;
  }

 private:
  static std::int64_t aligned(std::int64_t elements) { return (elements + 15) / 16 * 16; }
  void add_rows(std::int64_t queries, std::int64_t head_size) {
    rows = aligned(size);
    size = rows + aligned(std::min(queries, kScoreRows) * head_size);
  }
};

}  // namespace sluice
