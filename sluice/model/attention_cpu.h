// attention_cpu.h - attention of fp32 and fp64 tensors on a CPU, by tiles of scores. Read next:
// kernels_cpu.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sluice/model/attention.h"

namespace sluice {

/// attention_forward() with one running softmax over the tiles of all slices, so that no partial
/// results are merged. REQUIRES: fp32 or fp64 on a CPU, last dimensions dense; the last slice has
/// q's number of tokens, earlier ones any.
void attention_forward_cpu(const at::Tensor& q_BTHS, const KeyValueSlices& slices,
                           at::Tensor& out_BTHS, at::Tensor& lse_BHT);

/// attention_backward() likewise: each tile of probabilities is rebuilt from q, k and lse.
void attention_backward_cpu(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                            const KeyValueSlices& slices, const at::Tensor& out_BTHS,
                            const at::Tensor& lse_BHT, at::Tensor& dq_BTHS,
                            std::vector<at::Tensor>& dk, std::vector<at::Tensor>& dv);

}  // namespace sluice
