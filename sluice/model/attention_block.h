// attention_block.h - y = x + o(attention(rotary(q, k, v of norm x))). Read next: attention.h.
//
// R = B * T rows, D hidden size, H query heads, K key-value heads, S head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "sluice/model/attention_exchange.h"
#include "sluice/model/config.h"
#include "sluice/model/kernels.h"
#include "sluice/model/saved.h"
#include "sluice/model/weight_sink.h"
#include "sluice/model/weights.h"

namespace sluice {

/// What the forward leaves. `normed` is undefined unless recompute is none; k and v are undefined
/// when the microbatch has several slices, which share them in LayerKeyValues.
struct AttentionSaved {
  at::Tensor x_RD, reciprocal_R, normed_RD, q_BTHS, k_BKTS, v_BKTS, out_BTHS, lse_BHT;
};

/// What a pass of one slice needs besides its tensors.
struct AttentionSlice {
  SliceShape shape;
  const RotaryAngles& angles;
  const KeyValueContext& context;
  LayerKeyValues* shared = nullptr;       // null with one slice
  int layer = 0;                          // of the stage
  AttentionExchange* exchange = nullptr;  // null: all attention is computed here

  void keep_key_value(const at::Tensor& tensor) const {
    if (context.keep_key_value) context.keep_key_value(tensor);
  }
  void keep_gradient(const at::Tensor& tensor) const {
    if (context.keep_gradient) context.keep_gradient(tensor);
  }
};

class AttentionBlock {
 public:
  /// Creates input_layernorm and self_attn.{q,k,v,o}_proj under `prefix`.
  AttentionBlock(const WeightMaker& maker, const std::string& prefix);

  /// Returns y_RD and puts k, v into `saved` or the shared list. `keep` hears of every tensor of
  /// `saved` but x.
  at::Tensor forward(const at::Tensor& x_RD, const AttentionSlice& slice, AttentionSaved& saved,
                     const KeepTensor& keep) const;

  /// forward() again with recompute `selective`; shared keys and values are read, not replaced.
  at::Tensor recompute(const at::Tensor& x_RD, const AttentionSlice& slice, AttentionSaved& saved,
                       const KeepTensor& keep) const;

  /// Lends what others compute of the layer's backward. Called on entering it.
  void begin_backward(const AttentionSlice& slice, const AttentionSaved& saved) const;

  /// Returns dx_RD. Takes over dy and `saved`, hands the weight products to `sink` and adds the
  /// norm's gradient. With several slices adds to dk, dv of the earlier ones and frees the slice's
  /// own k, v, dk, dv.
  at::Tensor backward(at::Tensor dy_RD, const AttentionSlice& slice, AttentionSaved saved,
                      WeightSink& sink);

  /// Runs the products that backward() left in its sink. `pairs` points at the first operand.
  void backward_weight(at::Tensor* pairs);
  static constexpr int kNumPairs = 2;

 private:
  at::Tensor run(const at::Tensor& x_RD, const AttentionSlice& slice, bool keep_normed, bool share,
                 AttentionSaved& saved, const KeepTensor& keep) const;
  void attend(const AttentionSlice& slice, const KeyValueSlices& visible,
              AttentionSaved& saved) const;

  ModelConfig config_;
  Weight norm_, qkv_, o_;
};

}  // namespace sluice
