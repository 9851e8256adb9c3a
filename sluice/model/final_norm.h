// final_norm.h - the final norm alone, of a last stage whose output layer is sharded over all
// ranks. Read next: vocab_shard.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "sluice/model/config.h"
#include "sluice/model/saved.h"
#include "sluice/model/weights.h"

namespace sluice {

/// model.norm.weight. R rows, D hidden size.
class FinalNorm {
 public:
  explicit FinalNorm(const WeightMaker& maker);

  /// Returns y_RD; keeps x_RD and one number per row for backward().
  at::Tensor forward(at::Tensor x_RD, SavedTensors& saved, const KeepTensor& keep) const;

  /// Returns dx_RD, adds to the weight gradient, overwrites dy_RD and empties `saved`.
  at::Tensor backward(at::Tensor dy_RD, SavedTensors& saved);

  at::Tensor evaluate(const at::Tensor& x_RD) const;

 private:
  at::Tensor apply(const at::Tensor& x_RD, at::Tensor& reciprocal_R) const;

  double epsilon_;
  Weight weight_;
};

}  // namespace sluice
