#include "sluice/model/attention_block.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/attention.h"
#include "sluice/model/dtype.h"

namespace sluice {
namespace {

// Slices 0..i as slice i sees them.
KeyValueSlices visible_slices(const LayerKeyValues& shared, int slice) {
  const auto end = static_cast<std::ptrdiff_t>(slice) + 1;
  return {{shared.k.begin(), shared.k.begin() + end}, {shared.v.begin(), shared.v.begin() + end}};
}

at::Tensor zeros_for_sum(const at::Tensor& kv_BKTS) {
  return at::zeros(kv_BKTS.sizes(), kv_BKTS.options().dtype(statistics_of(kv_BKTS.scalar_type())));
}

}  // namespace

AttentionBlock::AttentionBlock(const WeightMaker& maker, const std::string& prefix)
    : config_(maker.config) {
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t kv_width = config_.num_key_value_heads * config_.head_dim();
  const double std_deviation = config_.initializer_range;
  const double into_residual =
      std_deviation / std::sqrt(2.0 * static_cast<double>(config_.num_hidden_layers));
  norm_ = maker.make({norm_spec(prefix + "input_layernorm.weight", hidden)});
  qkv_ = maker.make(
      {matrix_spec(prefix + "self_attn.q_proj.weight", hidden, hidden, std_deviation),
       matrix_spec(prefix + "self_attn.k_proj.weight", kv_width, hidden, std_deviation),
       matrix_spec(prefix + "self_attn.v_proj.weight", kv_width, hidden, std_deviation)});
  o_ = maker.make({matrix_spec(prefix + "self_attn.o_proj.weight", hidden, hidden, into_residual)});
}

at::Tensor AttentionBlock::forward(const at::Tensor& x_RD, const AttentionSlice& slice,
                                   AttentionSaved& saved, const KeepTensor& keep) const {
  return run(x_RD, slice, config_.recompute == Recompute::kNone, /*share=*/true, saved, keep);
}

at::Tensor AttentionBlock::recompute(const at::Tensor& x_RD, const AttentionSlice& slice,
                                     AttentionSaved& saved, const KeepTensor& keep) const {
  return run(x_RD, slice, /*keep_normed=*/false, /*share=*/false, saved, keep);
}

at::Tensor AttentionBlock::run(const at::Tensor& x_RD, const AttentionSlice& slice,
                               bool keep_normed, bool share, AttentionSaved& saved,
                               const KeepTensor& keep) const {
  const std::int64_t batch = slice.shape.batch, tokens = slice.shape.tokens;
  const std::int64_t heads = config_.num_attention_heads, size = config_.head_dim();
  const std::int64_t kv_heads = config_.num_key_value_heads;
  const at::TensorOptions options = x_RD.options();
  const at::TensorOptions statistics = options.dtype(statistics_of(x_RD.scalar_type()));

  if (slice.exchange != nullptr) {
    slice.exchange->lend_keys(slice.layer, visible_slices(*slice.shared, slice.shape.slice - 1));
  }
  saved.x_RD = x_RD;
  saved.reciprocal_R = at::empty({x_RD.size(0)}, statistics);
  keep(saved.reciprocal_R);
  at::Tensor normed_RD = at::empty_like(x_RD);
  if (keep_normed) {
    keep(normed_RD);
    saved.normed_RD = normed_RD;
  }
  rms_norm_forward(x_RD, norm_.value, config_.rms_norm_eps, normed_RD, saved.reciprocal_R);
  at::Tensor qkv_RD = at::empty({x_RD.size(0), qkv_.value.size(0)}, options);
  at::mm_out(qkv_RD, normed_RD, qkv_.value.t());
  normed_RD.reset();

  saved.q_BTHS = at::empty({batch, tokens, heads, size}, options);
  keep(saved.q_BTHS);
  const bool own_key_values = slice.shared == nullptr;
  const auto make_key_or_value = [&] {
    at::Tensor tensor = at::empty({batch, kv_heads, tokens, size}, options);
    if (own_key_values) {
      keep(tensor);
    } else if (share) {
      slice.keep_key_value(tensor);
    }
    return tensor;
  };
  at::Tensor k_BKTS = make_key_or_value();
  at::Tensor v_BKTS = make_key_or_value();
  rotary_forward(qkv_RD, slice.angles, slice.shape.first_position, saved.q_BTHS, k_BKTS, v_BKTS);
  qkv_RD.reset();
  if (slice.exchange != nullptr) slice.exchange->lend_queries(slice.layer, saved.q_BTHS);
  KeyValueSlices visible;
  if (own_key_values) {
    saved.k_BKTS = k_BKTS;
    saved.v_BKTS = v_BKTS;
    visible = {{k_BKTS}, {v_BKTS}};
  } else {
    const auto own = static_cast<std::size_t>(slice.shape.slice);
    if (share) {
      slice.shared->k[own] = k_BKTS;
      slice.shared->v[own] = v_BKTS;
    }
    visible = visible_slices(*slice.shared, slice.shape.slice);
  }
  saved.out_BTHS = at::empty({batch, tokens, heads, size}, options);
  keep(saved.out_BTHS);
  saved.lse_BHT = at::empty({batch, heads, tokens}, statistics);
  keep(saved.lse_BHT);
  attend(slice, visible, saved);
  at::Tensor y_RD = at::empty_like(x_RD);
  at::addmm_out(y_RD, x_RD, saved.out_BTHS.view({x_RD.size(0), -1}), o_.value.t());
  return y_RD;
}

void AttentionBlock::attend(const AttentionSlice& slice, const KeyValueSlices& visible,
                            AttentionSaved& saved) const {
  AttentionExchange* exchange = slice.exchange;
  const int num_lent = exchange != nullptr ? exchange->num_lent(slice.layer) : 0;
  if (num_lent == 0) {
    attention_forward(saved.q_BTHS, visible, saved.out_BTHS, saved.lse_BHT);
    if (exchange != nullptr) exchange->serve_forward(slice.layer, saved.q_BTHS, visible.k.back());
    return;
  }
  AttentionPart sum = attention_own_part(saved.q_BTHS, visible, num_lent, saved.out_BTHS);
  exchange->serve_forward(slice.layer, saved.q_BTHS, visible.k.back());
  exchange->merge_forward(slice.layer, sum);
  attention_finish(sum, saved.out_BTHS, saved.lse_BHT);
}

void AttentionBlock::begin_backward(const AttentionSlice& slice,
                                    const AttentionSaved& saved) const {
  if (slice.exchange == nullptr) return;
  slice.exchange->lend_backward(slice.layer, visible_slices(*slice.shared, slice.shape.slice - 1),
                                saved.q_BTHS, saved.out_BTHS, saved.lse_BHT);
}

at::Tensor AttentionBlock::backward(at::Tensor dy_RD, const AttentionSlice& slice,
                                    AttentionSaved saved, WeightSink& sink) {
  const at::Tensor residual_RD = dy_RD;
  sink.keep(dy_RD);
  at::Tensor dout_RD = at::empty_like(dy_RD);
  at::mm_out(dout_RD, dy_RD, o_.value);
  sink.add(o_.gradient, std::move(dy_RD), saved.out_BTHS.view({residual_RD.size(0), -1}));

  at::Tensor dq_BTHS = at::empty_like(saved.q_BTHS);
  at::Tensor dk_BKTS, dv_BKTS;
  if (slice.shared == nullptr) {
    std::vector<at::Tensor> dk = {zeros_for_sum(saved.k_BKTS)}, dv = {zeros_for_sum(saved.v_BKTS)};
    attention_backward(dout_RD.view(saved.q_BTHS.sizes()), saved.q_BTHS,
                       {{saved.k_BKTS}, {saved.v_BKTS}}, saved.out_BTHS, saved.lse_BHT, dq_BTHS, dk,
                       dv);
    dk_BKTS = std::move(dk.front());
    dv_BKTS = std::move(dv.front());
  } else {
    LayerKeyValues& shared = *slice.shared;
    const KeyValueSlices visible = visible_slices(shared, slice.shape.slice);
    for (std::size_t earlier = 0; earlier < visible.k.size(); ++earlier) {
      if (shared.dk[earlier].defined()) continue;
      shared.dk[earlier] = zeros_for_sum(visible.k[earlier]);
      slice.keep_gradient(shared.dk[earlier]);
      shared.dv[earlier] = zeros_for_sum(visible.v[earlier]);
      slice.keep_gradient(shared.dv[earlier]);
    }
    const at::Tensor dout_BTHS = dout_RD.view(saved.q_BTHS.sizes());
    AttentionExchange* exchange = slice.exchange;
    if (exchange != nullptr) exchange->lend_gradient(slice.layer, dout_BTHS);
    attention_backward(dout_BTHS, saved.q_BTHS, visible, saved.out_BTHS, saved.lse_BHT, dq_BTHS,
                       shared.dk, shared.dv,
                       exchange != nullptr ? exchange->num_lent(slice.layer) : 0);
    if (exchange != nullptr) {
      exchange->serve_backward(slice.layer, saved.q_BTHS, visible.k.back());
      exchange->add_backward(slice.layer, dq_BTHS, shared.dk, shared.dv);
    }
    for (std::size_t seen = 0; seen < visible.k.size(); ++seen) ++shared.num_added[seen];
    const auto own = static_cast<std::size_t>(slice.shape.slice);
    SLUICE_CHECK(
        std::exchange(shared.num_added[own], 0) == slice.context.num_slices - slice.shape.slice,
        "the gradient of the keys and values of slice {} is not complete: a later slice "
        "has not run its backward",
        slice.shape.slice);
    dk_BKTS = std::exchange(shared.dk[own], {});
    dv_BKTS = std::exchange(shared.dv[own], {});
    shared.k[own].reset();
    shared.v[own].reset();
  }
  dout_RD.reset();
  saved.q_BTHS.reset();
  saved.k_BKTS.reset();
  saved.v_BKTS.reset();
  saved.out_BTHS.reset();
  saved.lse_BHT.reset();

  at::Tensor dqkv_RD = at::empty({residual_RD.size(0), qkv_.value.size(0)}, residual_RD.options());
  sink.keep(dqkv_RD);
  rotary_backward(dq_BTHS, dk_BKTS, dv_BKTS, slice.angles, slice.shape.first_position, dqkv_RD);
  dq_BTHS.reset();
  dk_BKTS.reset();
  dv_BKTS.reset();

  at::Tensor normed_RD = at::empty_like(residual_RD);  // the gradient first, then the norm's output
  const bool rebuild = !saved.normed_RD.defined();
  if (rebuild) sink.keep(normed_RD);
  at::mm_out(normed_RD, dqkv_RD, qkv_.value);
  at::Tensor dx_RD = at::empty_like(residual_RD);
  rms_norm_backward(saved.x_RD, norm_.value, saved.reciprocal_R, residual_RD, normed_RD, rebuild,
                    dx_RD, norm_.gradient);
  if (!rebuild) normed_RD = std::move(saved.normed_RD);
  saved = {};
  sink.add(qkv_.gradient, std::move(dqkv_RD), std::move(normed_RD));
  return dx_RD;
}

void AttentionBlock::backward_weight(at::Tensor* pairs) {
  for (Weight* weight : {&o_, &qkv_}) {
    add_weight_gradient(weight->gradient, pairs[0], pairs[1]);
    pairs[0].reset();
    pairs[1].reset();
    pairs += 2;
  }
}

}  // namespace sluice
