// attention.h - causal grouped-query attention of one slice, forward and backward, by device.
// Read next: attention_block.h, attention_exchange.h.
//
// B sequences, T tokens of the slice, H query heads, K key-value heads (query head h reads head
// h / (H / K)), S head size.
//
// Bits. A result over several slices is made of partial results: of the slice's own keys, then of
// each earlier slice, newest first (of each half of its rows where the number of key-value heads is
// odd). Every partial result is computed by itself, from nothing, and added in that order, so the
// sum has the same bits wherever a part of it was computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace sluice {

/// Keys and values one query slice looks at: slices 0..i, the last being its own (causal), all
/// earlier ones seen in full. Tensors [B,K,T,S].
struct KeyValueSlices {
  std::vector<at::Tensor> k, v;
};

/// softmax(q k^T / sqrt(S)) v over all slices; partial results are merged by their maxima and sums
/// of exponentials (SlimPipe, arXiv 2504.14519, section 4). Writes out [B,T,H,S] and the natural
/// log-sum-exp of the scaled scores lse [B,H,T] (statistics type), both contiguous.
void attention_forward(const at::Tensor& q_BTHS, const KeyValueSlices& slices, at::Tensor& out_BTHS,
                       at::Tensor& lse_BHT);

/// Gradients of attention_forward(): writes dq [B,T,H,S] (contiguous) and adds to dk and dv, one
/// tensor [B,K,T,S] per slice in the statistics type. The `num_lent` oldest half slices
/// (HalfSlice) are left out: somebody else computes them.
/// REQUIRES: out and lse are the merged results of attention_forward() for the same slices.
void attention_backward(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                        const KeyValueSlices& slices, const at::Tensor& out_BTHS,
                        const at::Tensor& lse_BHT, at::Tensor& dq_BTHS, std::vector<at::Tensor>& dk,
                        std::vector<at::Tensor>& dv, int num_lent = 0);

/// Half a slice of keys and values, the unit in which attention moves between ranks: the first or
/// second half of the key-value heads where their number is even, of the rows where it is odd.
/// Half h is half h % 2 of slice h / 2.
struct HalfSlice {
  std::int64_t first_head = 0, num_heads = 0;  // key-value heads
  std::int64_t first_row = 0, num_rows = 0;

  at::Tensor of_keys(const at::Tensor& kv_BKTS) const {
    return kv_BKTS.narrow(1, first_head, num_heads).narrow(2, first_row, num_rows);
  }
  /// The query heads that read it: of a tensor with heads in dimension `dim`, `groups` per
  /// key-value head.
  at::Tensor of_queries(const at::Tensor& tensor, std::int64_t dim, std::int64_t groups) const {
    return tensor.narrow(dim, first_head * groups, num_heads * groups);
  }
};
HalfSlice half_slice(std::int64_t kv_heads, std::int64_t tokens, int half);

/// Attention over some of the keys, before the division: out = weighted / total, lse = maximum +
/// log(total). weighted [B,T,H,S] is the sum of exp(score - maximum) v, total [B,H,T] that of
/// exp(score - maximum); all in the statistics type.
struct AttentionPart {
  at::Tensor weighted_BTHS, maximum_BHT, total_BHT;
};

/// Attention over all slices but the `num_lent` oldest half slices. `out_BTHS` may become the
/// part's `weighted`. attention_forward() is this with nothing lent, then attention_finish().
AttentionPart attention_own_part(const at::Tensor& q_BTHS, const KeyValueSlices& slices,
                                 int num_lent, at::Tensor& out_BTHS);

/// Attention over one half slice, seen in full. `q_BTHS` has the query heads that read it; it and
/// the keys may be views.
AttentionPart attention_half(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                             const at::Tensor& v_BKTS);

/// Merges `part`, of the query heads from `first_head` on, into `sum`.
void attention_merge(AttentionPart& sum, const AttentionPart& part, std::int64_t first_head);

/// Writes out and lse, both contiguous.
void attention_finish(const AttentionPart& sum, at::Tensor& out_BTHS, at::Tensor& lse_BHT);

/// What one half slice adds to dq (of its query heads), dk and dv; statistics type, contiguous.
struct AttentionHalfGradients {
  at::Tensor dq_BTHS, dk_BKTS, dv_BKTS;
};

/// Gradients of one half slice. All tensors have the half's heads alone, and may be views.
AttentionHalfGradients attention_half_backward(const at::Tensor& dout_BTHS,
                                               const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                                               const at::Tensor& v_BKTS, const at::Tensor& out_BTHS,
                                               const at::Tensor& lse_BHT);

}  // namespace sluice
