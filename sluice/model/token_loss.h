// token_loss.h - the loss of every token from the statistics of all vocabulary shards. Read next:
// vocab_shard.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sluice/model/loss.h"

namespace sluice {

/// Rows of statistics_KN, the numbers per token that a shard gives.
enum StatisticsRow : std::int64_t {
  kMaximumRow,  // of the shard's logits; -inf for a shard without rows
  kSumRow,      // of exp(logit - maximum)
  kLabelRow,    // the label's logit if it is a row of the shard, else 0
  kLogitsRow,   // sum of the logits; only with label smoothing
};
inline std::int64_t num_statistics(const LossOptions& options) {
  return options.label_smoothing > 0.0 ? 4 : 3;
}

/// Loss and its derivatives of N tokens, the same on every rank. Total loss of a token with weight
/// w: scale * w * (lse - (1 - e) label - e mean(logits) + z lse^2), e the label smoothing.
struct TokenLoss {
  at::Tensor lse_N;
  at::Tensor softmax_factor_N;  // a = scale w (1 + 2 z lse)
  at::Tensor label_factor_N;    // c: of the label's row, all it has; what the products leave out
  at::Tensor target_factor_N;   // scale w
  std::vector<at::Tensor> shard_factor_N;  // per rank: a exp(maximum of the shard - lse)
  LossSum sum;                             // weighted
};

/// Combines the shards' statistics in the order of ranks. `weights_N` may be undefined: 1.
TokenLoss combine_statistics(const std::vector<at::Tensor>& statistics_KN,
                             const at::Tensor& weights_N, std::int64_t vocab_size,
                             const LossOptions& options);

}  // namespace sluice
