// vocab_shard.h - a rank's rows of embedding and output matrix, and what the vocabulary passes do
// with them (Vocabulary Parallelism, arXiv 2411.05288, in the label-excluded form of
// docs/vocabulary.md). Read next: token_loss.h.
//
// R rows (tokens) of a slice, N of them with a target, O of those whose target is a row of this
// shard, D hidden size, W columns of a tile of logits. Statistics are fp32 (fp64 for fp64 models).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sluice/model/config.h"
#include "sluice/model/loss.h"
#include "sluice/model/saved.h"
#include "sluice/model/token_loss.h"
#include "sluice/model/vocab_rows.h"
#include "sluice/model/weights.h"

namespace sluice {

/// Rows of model.embed_tokens.weight.
class EmbeddingShard {
 public:
  EmbeddingShard(const WeightMaker& maker, VocabRows rows);

  /// E: the embedding of those tokens that are rows of this shard, in their order.
  /// Throws: InvalidArgument on a CPU when a token is outside the vocabulary.
  at::Tensor forward(const at::Tensor& tokens_R) const;

  /// G: adds the rows of dx whose tokens are rows of this shard, in their order. Every element gets
  /// the sums that an unsplit embedding gets.
  void backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD);

 private:
  std::int64_t vocab_size_;
  VocabRows rows_;
  Weight weight_;
};

/// x_RD from what EmbeddingShard::forward() gave on every rank, by rank.
at::Tensor join_embedding(const at::Tensor& tokens_R, std::int64_t vocab_size,
                          const std::vector<at::Tensor>& parts_OD, std::int64_t hidden_size,
                          at::ScalarType type);

/// What S leaves for T of the same slice.
struct LogitsSaved {
  at::Tensor x_ND;
  /// Per tile: exp(logit - running maximum of the row), 0 at the label, in the model's type. Empty:
  /// T computes them again.
  std::vector<at::Tensor> probabilities_NW;
  std::vector<at::Tensor> maxima_N;  // per tile: that running maximum
};

/// Rows of the output matrix, lm_head.weight.
class OutputShard {
 public:
  OutputShard(const WeightMaker& maker, VocabRows rows);

  /// S. Goes over the shard in tiles of logits, with running maximum and sum. Returns
  /// statistics_KN (token_loss.h). Takes over x_ND.
  /// With `gradient_MD` (parallel-2) also fills it: N rows of the sum over this shard's columns,
  /// labels excluded, of exp(logit - maximum) times their weights; then the O weight rows of the
  /// labels; then, with label smoothing, one row: the sum of all weight rows.
  /// With `saved` null (validation) nothing is kept.
  at::Tensor forward(at::Tensor x_ND, const at::Tensor& targets_N, const LossOptions& options,
                     bool keep_probabilities, LogitsSaved* saved, at::Tensor* gradient_MD,
                     const KeepTensor& keep) const;

  /// T. Adds to the weight gradient and empties `saved`. `loss` is that of the same tokens. In the
  /// parallel-1 form fills `dx_ND` with this shard's part of the gradient, which only has to be
  /// added up over the ranks.
  void backward(const TokenLoss& loss, const at::Tensor& targets_N, const LossOptions& options,
                LogitsSaved& saved, at::Tensor* dx_ND);

  const VocabRows& rows() const { return rows_; }

 private:
  // Fills logits_NW with the logits of the rows of the matrix from `first` on.
  void logits_of(const at::Tensor& x_ND, std::int64_t first, at::Tensor& logits_NW) const;

  ModelConfig config_;
  VocabRows rows_;
  Weight head_;
};

/// d(total loss)/d(hidden states) in fp32 or fp64, from what OutputShard::forward() put in
/// gradient_MD on every rank, by rank: the sums are weighted, added in the order of ranks, and the
/// labels' rows come last.
at::Tensor join_hidden_gradient(const TokenLoss& loss, const at::Tensor& targets_N,
                                std::int64_t vocab_size, const LossOptions& options,
                                const std::vector<at::Tensor>& parts_MD);

/// Columns of a tile of logits for a shard of `rows` rows.
std::int64_t vocab_tile_columns(std::int64_t rows);

/// Rows of gradient_MD: `num_owned` of `num_targets` targets are rows of the shard.
inline std::int64_t hidden_gradient_rows(std::int64_t num_targets, std::int64_t num_owned,
                                         const LossOptions& options) {
  return num_targets + num_owned + (options.label_smoothing > 0.0 ? 1 : 0);
}

}  // namespace sluice
