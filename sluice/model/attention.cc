#include "sluice/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "sluice/common/errors.h"
#include "sluice/model/attention_cpu.h"
#include "sluice/model/dtype.h"

namespace sluice {
namespace {

struct Partial {
  at::Tensor out_BHTS, lse_BHT;
};

struct PartialGradients {
  at::Tensor dq_BHTS, dk_BKTS, dv_BKTS;
};

// Which kernel serves these tensors.
enum class Backend : std::uint8_t { kCpuFlash, kCudaFlash, kMath };

Backend choose_backend(const at::Tensor& q) {
  if (q.is_cpu()) return Backend::kCpuFlash;
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (q.is_cuda() && half && q.size(-1) % 8 == 0 && q.size(-1) <= 256) return Backend::kCudaFlash;
  return Backend::kMath;
}

// Scores of plain matrix products, for devices and types without a fused kernel. K/V heads are
// expanded; the causal mask is top-left, as rows and columns start at the same token.
at::Tensor expand_heads(const at::Tensor& kv_BKTS, std::int64_t heads) {
  return kv_BKTS.repeat_interleave(heads / kv_BKTS.size(1), 1);
}

at::Tensor math_scores(const at::Tensor& q, const at::Tensor& k, bool causal) {
  const at::ScalarType type = statistics_of(q.scalar_type());
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  at::Tensor scores =
      at::matmul(q.to(type), expand_heads(k, q.size(1)).to(type).transpose(-1, -2)) * scale;
  if (causal) {
    const at::Tensor above =
        at::ones({q.size(2), k.size(2)}, scores.options().dtype(at::kBool)).triu(1);
    scores.masked_fill_(above, -std::numeric_limits<double>::infinity());
  }
  return scores;
}

Partial math_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  const at::Tensor scores = math_scores(q, k, causal);
  const at::Tensor lse = at::logsumexp(scores, {-1});
  const at::Tensor weights = at::exp(scores - lse.unsqueeze(-1));
  return {at::matmul(weights, expand_heads(v, q.size(1)).to(weights.scalar_type())), lse};
}

PartialGradients math_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                               bool causal) {
  const at::ScalarType type = statistics_of(q.scalar_type());
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const std::int64_t batch = k.size(0), kv_heads = k.size(1), keys = k.size(2), size = k.size(3);
  const at::Tensor weights = at::exp(math_scores(q, k, causal) - lse.unsqueeze(-1));
  const at::Tensor gradient = dout.to(type);
  const at::Tensor row = (gradient * out.to(type)).sum(-1, /*keepdim=*/true);
  const at::Tensor dscores =
      weights *
      (at::matmul(gradient, expand_heads(v, q.size(1)).to(type).transpose(-1, -2)) - row) * scale;
  const auto sum_groups = [&](const at::Tensor& per_head) {
    return per_head.view({batch, kv_heads, -1, keys, size}).sum(2);
  };
  return {at::matmul(dscores, expand_heads(k, q.size(1)).to(type)),
          sum_groups(at::matmul(dscores.transpose(-1, -2), q.to(type))),
          sum_groups(at::matmul(weights.transpose(-1, -2), gradient))};
}

Partial forward_one(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  // CPU kernels align a causal mask top-left, CUDA flash bottom-right: equal on a square block
  // only.
  SLUICE_CHECK(!causal || q.size(2) == k.size(2));
  switch (choose_backend(q)) {
    case Backend::kCpuFlash: {
      auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal);
      return {out, lse};
    }
    case Backend::kCudaFlash: {
      auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal);
      return {std::get<0>(result), std::get<1>(result)};
    }
    case Backend::kMath:
      return math_forward(q, k, v, causal);
  }
  throw InternalError("unknown attention backend");
}

PartialGradients backward_one(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                              bool causal) {
  SLUICE_CHECK(!causal || q.size(2) == k.size(2));
  switch (choose_backend(q)) {
    case Backend::kCpuFlash: {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          dout, q, k, v, out, lse, 0.0, causal);
      return {dq, dk, dv};
    }
    case Backend::kCudaFlash: {
      // Without dropout the random state is not read.
      const at::Tensor none = at::empty({2}, q.options().dtype(at::kLong));
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
          dout, q, k, v, out, lse, {}, {}, q.size(2), k.size(2), 0.0, causal, none, none);
      return {dq, dk, dv};
    }
    case Backend::kMath:
      return math_backward(dout, q, k, v, out, lse, causal);
  }
  throw InternalError("unknown attention backend");
}

bool has_cpu_loops(const at::Tensor& q) {
  return q.is_cpu() && (q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble);
}

}  // namespace

void attention_forward(const at::Tensor& q_BTHS, const KeyValueSlices& slices, at::Tensor& out_BTHS,
                       at::Tensor& lse_BHT) {
  if (has_cpu_loops(q_BTHS)) return attention_forward_cpu(q_BTHS, slices, out_BTHS, lse_BHT);
  const at::Tensor q = q_BTHS.transpose(1, 2);
  const std::size_t own = slices.k.size() - 1;
  Partial merged = forward_one(q, slices.k[own], slices.v[own], /*causal=*/true);
  if (own > 0) merged.out_BHTS = merged.out_BHTS.to(statistics_of(q.scalar_type()));
  for (std::size_t slice = own; slice-- > 0;) {
    const Partial next = forward_one(q, slices.k[slice], slices.v[slice], /*causal=*/false);
    // out and lse of the union, written so that no exponential can overflow.
    const at::Tensor difference = merged.lse_BHT - next.lse_BHT;
    merged.out_BHTS = merged.out_BHTS -
                      at::sigmoid(-difference).unsqueeze(-1) * (merged.out_BHTS - next.out_BHTS);
    merged.lse_BHT = merged.lse_BHT - at::log_sigmoid(difference);
  }
  out_BTHS.transpose(1, 2).copy_(merged.out_BHTS);
  lse_BHT.copy_(merged.lse_BHT);
}

void attention_backward(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                        const KeyValueSlices& slices, const at::Tensor& out_BTHS,
                        const at::Tensor& lse_BHT, at::Tensor& dq_BTHS, std::vector<at::Tensor>& dk,
                        std::vector<at::Tensor>& dv) {
  if (has_cpu_loops(q_BTHS)) {
    return attention_backward_cpu(dout_BTHS, q_BTHS, slices, out_BTHS, lse_BHT, dq_BTHS, dk, dv);
  }
  const at::Tensor q = q_BTHS.transpose(1, 2);
  const at::Tensor dout = dout_BTHS.transpose(1, 2);
  const at::Tensor out = out_BTHS.transpose(1, 2);
  const std::size_t num_slices = slices.k.size();
  at::Tensor dq;
  for (std::size_t slice = num_slices; slice-- > 0;) {
    const bool causal = slice + 1 == num_slices;
    const PartialGradients part =
        backward_one(dout, q, slices.k[slice], slices.v[slice], out, lse_BHT, causal);
    dk[slice].add_(part.dk_BKTS);
    dv[slice].add_(part.dv_BKTS);
    if (dq.defined()) {
      dq.add_(part.dq_BHTS);
    } else {
      dq = num_slices > 1 ? part.dq_BHTS.to(statistics_of(q.scalar_type())) : part.dq_BHTS;
    }
  }
  dq_BTHS.copy_(dq.transpose(1, 2));
}

}  // namespace sluice
