// attention_exchange.h - what a layer calls when its pass shares attention with other ranks.
// Read next: attention_block.h, runtime/exchanger.h (implements it), program/exchange.h (the plan).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sluice/model/attention.h"

namespace sluice {

/// One pass's share in the attention exchange. The layer calls the functions of a direction in the
/// order they stand here, each once per layer; only the last two of a direction wait for anybody.
/// `layer` counts from the first of the stage. Threads: the rank's own.
class AttentionExchange {
 public:
  virtual ~AttentionExchange() = default;

  /// How many of the oldest half slices (attention.h) other ranks compute for this layer.
  virtual int num_lent(int layer) const = 0;

  // Forward: before the layer's own projections; after the rotary embedding; after the own part;
  // and last, which merges what comes back.
  virtual void lend_keys(int layer, const KeyValueSlices& slices) = 0;
  virtual void lend_queries(int layer, const at::Tensor& q_BTHS) = 0;
  /// `q_BTHS` and `k_BKTS` are the layer's own, whose sizes every rank's tensors have.
  virtual void serve_forward(int layer, const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) = 0;
  virtual void merge_forward(int layer, AttentionPart& sum) = 0;

  // Backward: on entering the layer; when the output's gradient is there; after the own part; and
  // last, which adds what comes back.
  virtual void lend_backward(int layer, const KeyValueSlices& slices, const at::Tensor& q_BTHS,
                             const at::Tensor& out_BTHS, const at::Tensor& lse_BHT) = 0;
  virtual void lend_gradient(int layer, const at::Tensor& dout_BTHS) = 0;
  virtual void serve_backward(int layer, const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) = 0;
  virtual void add_backward(int layer, at::Tensor& dq_BTHS, std::vector<at::Tensor>& dk,
                            std::vector<at::Tensor>& dv) = 0;
};

}  // namespace sluice
