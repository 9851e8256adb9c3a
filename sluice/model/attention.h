// attention.h - causal grouped-query attention of one slice, forward and backward, by device.
// Read next: attention_block.h.
//
// B sequences, T tokens of the slice, H query heads, K key-value heads (query head h reads head
// h / (H / K)), S head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace sluice {

/// Keys and values one query slice looks at: slices 0..i, the last being its own (causal), all
/// earlier ones seen in full. Tensors [B,K,T,S].
struct KeyValueSlices {
  std::vector<at::Tensor> k, v;
};

/// softmax(q k^T / sqrt(S)) v over all slices; on devices with fused kernels partial results are
/// merged by their log-sum-exp (SlimPipe, arXiv 2504.14519, section 4). Writes out [B,T,H,S] and
/// the natural log-sum-exp of the scaled scores lse [B,H,T] (statistics type), both contiguous.
void attention_forward(const at::Tensor& q_BTHS, const KeyValueSlices& slices, at::Tensor& out_BTHS,
                       at::Tensor& lse_BHT);

/// Gradients of attention_forward(): writes dq [B,T,H,S] (contiguous) and adds to dk and dv, one
/// tensor [B,K,T,S] per slice in the statistics type.
/// REQUIRES: out and lse are the merged results of attention_forward() for the same slices.
void attention_backward(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                        const KeyValueSlices& slices, const at::Tensor& out_BTHS,
                        const at::Tensor& lse_BHT, at::Tensor& dq_BTHS, std::vector<at::Tensor>& dk,
                        std::vector<at::Tensor>& dv);

}  // namespace sluice
