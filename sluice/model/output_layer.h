// output_layer.h - final norm, output matrix and cross entropy, tile by tile. Read next: kernels.h.
//
// R = B * T rows, D hidden size, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include "sluice/model/config.h"
#include "sluice/model/loss.h"
#include "sluice/model/saved.h"
#include "sluice/model/weights.h"

namespace sluice {

/// The logits of at most loss_tile_rows() rows exist at any time; loss, dx and the weight gradient
/// are finished tile by tile, so nothing but the input and the targets waits for the backward.
/// With tied embeddings lm_head.weight is a parameter of its own, tied to
/// model.embed_tokens.weight.
class OutputLayer {
 public:
  explicit OutputLayer(const WeightMaker& maker);

  /// Adds the sums to `loss` and the gradients of norm and matrix; returns dx_RD. Throws:
  /// InvalidArgument on a CPU when a target is outside the vocabulary.
  at::Tensor backward(const at::Tensor& x_RD, const at::Tensor& targets_R,
                      const LossOptions& options, LossSum& loss);

  /// Adds the sums to `loss`.
  void evaluate(const at::Tensor& x_RD, const at::Tensor& targets_R, const LossOptions& options,
                LossSum& loss) const;

  /// logits_RV in the statistics type.
  at::Tensor logits(const at::Tensor& x_RD) const;

 private:
  at::Tensor norm(const at::Tensor& x_RD, at::Tensor& reciprocal_R) const;
  void logits_of(const at::Tensor& normed_RD, at::Tensor& logits_RV) const;

  ModelConfig config_;
  Weight norm_, head_;
};

}  // namespace sluice
