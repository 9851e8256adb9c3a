// decoder_layer.h - one Llama decoder layer: attention block, then MLP block. Read next:
// attention_block.h, mlp_block.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "sluice/model/attention_block.h"
#include "sluice/model/mlp_block.h"
#include "sluice/model/saved.h"
#include "sluice/model/weights.h"

namespace sluice {

/// The passes of one layer. Tensors are [R, D] with R = B * T rows.
/// Saved after F, in this order: x (all that `full` keeps); attention: reciprocal, [normed], q,
/// [k, v], out, lse; MLP: x, reciprocal, [normed], gate_up, [activation], where the bracketed ones
/// depend on recompute and slices. After I: the operand pairs of down, gate_up, o, qkv.
class DecoderLayer {
 public:
  /// Creates the parameters of layer `index` of the model.
  DecoderLayer(const WeightMaker& maker, int index);

  /// F. Returns y_RD; `keep` hears of every saved tensor, x included.
  at::Tensor forward(const at::Tensor& x_RD, const AttentionSlice& slice, SavedTensors& saved,
                     const KeepTensor& keep) const;

  /// F without saving.
  at::Tensor evaluate(const at::Tensor& x_RD, const AttentionSlice& slice) const;

  /// I. Takes over dy; leaves in `saved` what W needs. Returns dx_RD.
  at::Tensor backward_input(at::Tensor dy_RD, const AttentionSlice& slice, SavedTensors& saved,
                            const KeepTensor& keep);

  /// W. Empties `saved`.
  void backward_weight(SavedTensors& saved);

  /// B. Empties `saved`. Returns dx_RD.
  at::Tensor backward(at::Tensor dy_RD, const AttentionSlice& slice, SavedTensors& saved);

 private:
  at::Tensor run_backward(at::Tensor dy_RD, const AttentionSlice& slice, SavedTensors& saved,
                          WeightSink& sink);

  Recompute recompute_;
  AttentionBlock attention_;
  MlpBlock mlp_;
};

}  // namespace sluice
