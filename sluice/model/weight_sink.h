// weight_sink.h - weight gradients as operand pairs, multiplied at once (B) or kept for later (I,
// W).
#pragma once

#include <ATen/core/Tensor.h>

#include "sluice/model/saved.h"

namespace sluice {

/// gradient_NM += dy_RN^T x_RM, in place.
void add_weight_gradient(at::Tensor& gradient_NM, const at::Tensor& dy_RN, const at::Tensor& x_RM);

/// Takes the operands of each weight gradient as soon as a backward has them. B, and I followed by
/// W, run the same products on the same operands, so they give the same bits by construction.
class WeightSink {
 public:
  /// Multiplies at once (B).
  WeightSink() = default;
  /// Appends the operands to `saved` (I); both arguments outlive the sink.
  WeightSink(SavedTensors& saved, const KeepTensor& keep) : saved_(&saved), keep_(&keep) {}

  /// Reports an operand-to-be as kept, unless products are done at once.
  void keep(const at::Tensor& operand) const {
    if (keep_ != nullptr) (*keep_)(operand);
  }
  /// Takes over both operands; frees them at once unless they wait for W.
  void add(at::Tensor& gradient_NM, at::Tensor dy_RN, at::Tensor x_RM);

 private:
  SavedTensors* saved_ = nullptr;
  const KeepTensor* keep_ = nullptr;
};

}  // namespace sluice
