// attention_cpu.h - attention of fp32 and fp64 tensors on a CPU, by tiles of scores. Read next:
// kernels_cpu.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sluice/model/attention.h"

namespace sluice {

/// Keys and values that all queries see in full and whose partial result is made by itself: views
/// [B,k,t,S] of the key-value heads from `first_head` on. Backward only: views of their gradients.
struct KeyValueBlock {
  at::Tensor k_BKTS, v_BKTS, dk_BKTS, dv_BKTS;
  std::int64_t first_head = 0;
};

/// attention_own_part() of the own (causal) keys and of `blocks`, in their order. Writes the sums
/// to out and the maxima to lse; with `total` undefined also divides, which leaves what
/// attention_forward() does. REQUIRES: fp32 or fp64 on a CPU, last dimensions dense; as many own
/// keys as queries.
void attention_forward_cpu(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                           const at::Tensor& v_BKTS, const std::vector<KeyValueBlock>& blocks,
                           at::Tensor& out_BTHS, at::Tensor& lse_BHT, at::Tensor& total_BHT);

/// attention_half(), attention_merge() and attention_finish() likewise.
void attention_half_cpu(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                        const at::Tensor& v_BKTS, AttentionPart& part);
void attention_merge_cpu(AttentionPart& sum, const AttentionPart& part, std::int64_t first_head);
void attention_finish_cpu(const AttentionPart& sum, at::Tensor& out_BTHS, at::Tensor& lse_BHT);

/// attention_backward() likewise: each tile of probabilities is rebuilt from q, k and lse. `own`
/// has all heads.
void attention_backward_cpu(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                            const KeyValueBlock& own, const std::vector<KeyValueBlock>& blocks,
                            const at::Tensor& out_BTHS, const at::Tensor& lse_BHT,
                            at::Tensor& dq_BTHS);

/// attention_half_backward() into tensors of the results' shapes.
void attention_half_backward_cpu(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                                 const at::Tensor& k_BKTS, const at::Tensor& v_BKTS,
                                 const at::Tensor& out_BTHS, const at::Tensor& lse_BHT,
                                 AttentionHalfGradients& gradients);

}  // namespace sluice
