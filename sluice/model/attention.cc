#include "sluice/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>

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

// What is left of the earlier slices, newest first, when the `num_lent` oldest halves are not here.
// With whole slices as parts a slice of which one half is lent keeps its upper heads.
std::vector<KeyValueBlock> earlier_blocks(const KeyValueSlices& slices, int num_lent,
                                          const std::vector<at::Tensor>* dk,
                                          const std::vector<at::Tensor>* dv) {
  std::vector<KeyValueBlock> blocks;
  const auto add = [&](std::size_t slice, const HalfSlice& half) {
    if (half.num_rows == 0) return;
    blocks.push_back({half.of_keys(slices.k[slice]), half.of_keys(slices.v[slice]),
                      dk != nullptr ? half.of_keys((*dk)[slice]) : at::Tensor(),
                      dv != nullptr ? half.of_keys((*dv)[slice]) : at::Tensor(), half.first_head});
  };
  for (std::size_t slice = slices.k.size() - 1; slice-- > 0;) {
    const std::int64_t kv_heads = slices.k[slice].size(1), keys = slices.k[slice].size(2);
    const int first_half = 2 * static_cast<int>(slice);
    const bool lower = num_lent <= first_half, upper = num_lent <= first_half + 1;
    if (kv_heads % 2 == 0 && lower) {
      add(slice, {0, kv_heads, 0, keys});
      continue;
    }
    if (upper) add(slice, half_slice(kv_heads, keys, 1));
    if (lower) add(slice, half_slice(kv_heads, keys, 0));
  }
  return blocks;
}

// The same in [B,H,T,S] for kernels that return an output and its log-sum-exp: a part whose sum of
// exponentials is 1.
AttentionPart part_of(const Partial& partial) {
  const at::Tensor lse_BHT = partial.lse_BHT.contiguous();
  return {partial.out_BHTS.to(lse_BHT.scalar_type()).transpose(1, 2).contiguous(), lse_BHT,
          at::ones_like(lse_BHT)};
}

at::Tensor heads_of(const at::Tensor& tensor, std::int64_t dim, std::int64_t first,
                    std::int64_t count) {
  return first == 0 && count == tensor.size(dim) ? tensor : tensor.narrow(dim, first, count);
}

}  // namespace

HalfSlice half_slice(std::int64_t kv_heads, std::int64_t tokens, int half) {
  const bool upper = half % 2 == 1;
  if (kv_heads % 2 == 0) return {upper ? kv_heads / 2 : 0, kv_heads / 2, 0, tokens};
  const std::int64_t middle = (tokens + 1) / 2;
  return {0, kv_heads, upper ? middle : 0, upper ? tokens - middle : middle};
}

AttentionPart attention_own_part(const at::Tensor& q_BTHS, const KeyValueSlices& slices,
                                 int num_lent, at::Tensor& out_BTHS) {
  const std::vector<KeyValueBlock> blocks = earlier_blocks(slices, num_lent, nullptr, nullptr);
  if (has_cpu_loops(q_BTHS)) {
    AttentionPart sum{
        out_BTHS, at::empty({q_BTHS.size(0), q_BTHS.size(2), q_BTHS.size(1)}, q_BTHS.options())};
    sum.total_BHT = at::empty_like(sum.maximum_BHT);
    attention_forward_cpu(q_BTHS, slices.k.back(), slices.v.back(), blocks, out_BTHS,
                          sum.maximum_BHT, sum.total_BHT);
    return sum;
  }
  const at::Tensor q = q_BTHS.transpose(1, 2);
  AttentionPart sum = part_of(forward_one(q, slices.k.back(), slices.v.back(), /*causal=*/true));
  const std::int64_t groups = q.size(1) / slices.k.back().size(1);
  for (const KeyValueBlock& block : blocks) {
    const at::Tensor of_block =
        heads_of(q, 1, block.first_head * groups, block.k_BKTS.size(1) * groups);
    attention_merge(sum, part_of(forward_one(of_block, block.k_BKTS, block.v_BKTS, false)),
                    block.first_head * groups);
  }
  return sum;
}

void attention_forward(const at::Tensor& q_BTHS, const KeyValueSlices& slices, at::Tensor& out_BTHS,
                       at::Tensor& lse_BHT) {
  if (has_cpu_loops(q_BTHS)) {
    at::Tensor none;
    return attention_forward_cpu(q_BTHS, slices.k.back(), slices.v.back(),
                                 earlier_blocks(slices, 0, nullptr, nullptr), out_BTHS, lse_BHT,
                                 none);
  }
  attention_finish(attention_own_part(q_BTHS, slices, 0, out_BTHS), out_BTHS, lse_BHT);
}

AttentionPart attention_half(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                             const at::Tensor& v_BKTS) {
  if (!has_cpu_loops(q_BTHS)) {
    return part_of(forward_one(q_BTHS.transpose(1, 2), k_BKTS, v_BKTS, /*causal=*/false));
  }
  AttentionPart part{at::empty(q_BTHS.sizes(), q_BTHS.options()),
                     at::empty({q_BTHS.size(0), q_BTHS.size(2), q_BTHS.size(1)}, q_BTHS.options())};
  part.total_BHT = at::empty_like(part.maximum_BHT);
  attention_half_cpu(q_BTHS, k_BKTS, v_BKTS, part);
  return part;
}

void attention_merge(AttentionPart& sum, const AttentionPart& part, std::int64_t first_head) {
  if (has_cpu_loops(part.weighted_BTHS)) return attention_merge_cpu(sum, part, first_head);
  const std::int64_t heads = part.maximum_BHT.size(1);
  at::Tensor weighted = heads_of(sum.weighted_BTHS, 2, first_head, heads);
  at::Tensor maximum = heads_of(sum.maximum_BHT, 1, first_head, heads);
  at::Tensor total = heads_of(sum.total_BHT, 1, first_head, heads);
  const at::Tensor top = at::maximum(maximum, part.maximum_BHT);
  const at::Tensor kept = at::exp(maximum - top), added = at::exp(part.maximum_BHT - top);
  const auto of_rows = [](const at::Tensor& factor) {
    return factor.transpose(1, 2).unsqueeze(-1);
  };
  weighted.copy_(weighted * of_rows(kept) + part.weighted_BTHS * of_rows(added));
  total.copy_(total * kept + part.total_BHT * added);
  maximum.copy_(top);
}

void attention_finish(const AttentionPart& sum, at::Tensor& out_BTHS, at::Tensor& lse_BHT) {
  if (has_cpu_loops(out_BTHS)) return attention_finish_cpu(sum, out_BTHS, lse_BHT);
  out_BTHS.copy_(sum.weighted_BTHS / sum.total_BHT.transpose(1, 2).unsqueeze(-1));
  lse_BHT.copy_(sum.maximum_BHT + at::log(sum.total_BHT));
}

void attention_backward(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                        const KeyValueSlices& slices, const at::Tensor& out_BTHS,
                        const at::Tensor& lse_BHT, at::Tensor& dq_BTHS, std::vector<at::Tensor>& dk,
                        std::vector<at::Tensor>& dv, int num_lent) {
  const std::size_t last = slices.k.size() - 1;
  const KeyValueBlock own{slices.k[last], slices.v[last], dk[last], dv[last], 0};
  const std::vector<KeyValueBlock> blocks = earlier_blocks(slices, num_lent, &dk, &dv);
  if (has_cpu_loops(q_BTHS)) {
    return attention_backward_cpu(dout_BTHS, q_BTHS, own, blocks, out_BTHS, lse_BHT, dq_BTHS);
  }
  const std::int64_t groups = q_BTHS.size(2) / own.k_BKTS.size(1);
  at::Tensor dq_BHTS;
  const auto add_block = [&](const KeyValueBlock& block, bool causal) {
    const std::int64_t first = block.first_head * groups, heads = block.k_BKTS.size(1) * groups;
    const PartialGradients part =
        backward_one(heads_of(dout_BTHS, 2, first, heads).transpose(1, 2),
                     heads_of(q_BTHS, 2, first, heads).transpose(1, 2), block.k_BKTS, block.v_BKTS,
                     heads_of(out_BTHS, 2, first, heads).transpose(1, 2),
                     heads_of(lse_BHT, 1, first, heads), causal);
    at::Tensor(block.dk_BKTS).add_(part.dk_BKTS);
    at::Tensor(block.dv_BKTS).add_(part.dv_BKTS);
    if (dq_BHTS.defined()) {
      heads_of(dq_BHTS, 1, first, heads).add_(part.dq_BHTS);
    } else {
      dq_BHTS = part.dq_BHTS.to(statistics_of(q_BTHS.scalar_type()));
    }
  };
  add_block(own, /*causal=*/true);
  for (const KeyValueBlock& block : blocks) add_block(block, /*causal=*/false);
  dq_BTHS.copy_(dq_BHTS.transpose(1, 2));
}

AttentionHalfGradients attention_half_backward(const at::Tensor& dout_BTHS,
                                               const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                                               const at::Tensor& v_BKTS, const at::Tensor& out_BTHS,
                                               const at::Tensor& lse_BHT) {
  const auto statistics = q_BTHS.options().dtype(statistics_of(q_BTHS.scalar_type()));
  AttentionHalfGradients gradients{at::empty(q_BTHS.sizes(), statistics),
                                   at::empty(k_BKTS.sizes(), statistics),
                                   at::empty(v_BKTS.sizes(), statistics)};
  if (has_cpu_loops(q_BTHS)) {
    attention_half_backward_cpu(dout_BTHS, q_BTHS, k_BKTS, v_BKTS, out_BTHS, lse_BHT, gradients);
    return gradients;
  }
  const PartialGradients part =
      backward_one(dout_BTHS.transpose(1, 2), q_BTHS.transpose(1, 2), k_BKTS, v_BKTS,
                   out_BTHS.transpose(1, 2), lse_BHT, /*causal=*/false);
  gradients.dq_BTHS.copy_(part.dq_BHTS.transpose(1, 2));
  gradients.dk_BKTS.copy_(part.dk_BKTS);
  gradients.dv_BKTS.copy_(part.dv_BKTS);
  return gradients;
}

}  // namespace sluice
