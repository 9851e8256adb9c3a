// vocab_rows.h - which rows of the vocabulary matrices a rank holds. Free of torch.
// Read next: vocab_shard.h.
#pragma once

#include <cstdint>

namespace sluice {

/// Rows [first, first + count) of the embedding and of the output matrix.
struct VocabRows {
  std::int64_t first = 0;
  std::int64_t count = 0;

  bool contains(std::int64_t id) const { return id >= first && id - first < count; }
  friend bool operator==(const VocabRows&, const VocabRows&) = default;
};

/// The rows of `rank`: contiguous, ascending, their numbers differ by at most one. No row is added
/// to make a vocabulary divide, so nothing has to be masked.
inline VocabRows vocab_rows(std::int64_t vocab_size, int num_ranks, int rank) {
  const std::int64_t first = vocab_size * rank / num_ranks;
  return {first, vocab_size * (rank + 1) / num_ranks - first};
}

/// The rank that holds the row of `id`.
inline int rank_of_row(std::int64_t vocab_size, int num_ranks, std::int64_t id) {
  int rank = static_cast<int>(id * num_ranks / vocab_size);
  while (rank + 1 < num_ranks && vocab_size * (rank + 1) / num_ranks <= id) ++rank;
  while (rank > 0 && vocab_size * rank / num_ranks > id) --rank;
  return rank;
}

}  // namespace sluice
