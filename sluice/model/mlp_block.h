// mlp_block.h - y = x + down(silu(gate(norm x)) * up(norm x)). Read next: attention_block.h.
//
// R = B * T rows, D hidden size, I intermediate size.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "sluice/model/config.h"
#include "sluice/model/saved.h"
#include "sluice/model/weight_sink.h"
#include "sluice/model/weights.h"

namespace sluice {

/// What the forward leaves. `normed` and `activation` stay undefined unless recompute is none: the
/// backward rebuilds both in buffers it no longer needs.
struct MlpSaved {
  at::Tensor x_RD, reciprocal_R, normed_RD, gate_up_R2I, activation_RI;
};

class MlpBlock {
 public:
  /// Creates post_attention_layernorm, mlp.gate_proj, mlp.up_proj, mlp.down_proj under `prefix`.
  MlpBlock(const WeightMaker& maker, const std::string& prefix);

  /// Returns y_RD. `keep` hears of every tensor of `saved` but x.
  at::Tensor forward(const at::Tensor& x_RD, MlpSaved& saved, const KeepTensor& keep) const;

  /// Fills `saved` as forward() does with recompute `selective`, without computing y.
  void recompute(const at::Tensor& x_RD, MlpSaved& saved, const KeepTensor& keep) const;

  /// Returns dx_RD. Takes over dy and `saved`, hands the weight products to `sink` and adds the
  /// norm's gradient.
  at::Tensor backward(at::Tensor dy_RD, MlpSaved saved, WeightSink& sink);

  /// Runs the products that backward() left in its sink. `pairs` points at the first operand.
  void backward_weight(at::Tensor* pairs);
  static constexpr int kNumPairs = 2;

 private:
  void project(const at::Tensor& x_RD, MlpSaved& saved, at::Tensor& normed_RD,
               const KeepTensor& keep) const;

  double eps_;
  bool keep_all_;
  Weight norm_, gate_up_, down_;
};

}  // namespace sluice
