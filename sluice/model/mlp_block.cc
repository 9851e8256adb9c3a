#include "sluice/model/mlp_block.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <cmath>
#include <utility>

#include "sluice/model/dtype.h"
#include "sluice/model/kernels.h"

namespace sluice {

MlpBlock::MlpBlock(const WeightMaker& maker, const std::string& prefix)
    : eps_(maker.config.rms_norm_eps), keep_all_(maker.config.recompute == Recompute::kNone) {
  const ModelConfig& config = maker.config;
  const std::int64_t hidden = config.hidden_size, width = config.intermediate_size;
  const double into_residual =
      config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  norm_ = maker.make({norm_spec(prefix + "post_attention_layernorm.weight", hidden)});
  gate_up_ = maker.make(
      {matrix_spec(prefix + "mlp.gate_proj.weight", width, hidden, config.initializer_range),
       matrix_spec(prefix + "mlp.up_proj.weight", width, hidden, config.initializer_range)});
  down_ = maker.make({matrix_spec(prefix + "mlp.down_proj.weight", hidden, width, into_residual)});
}

void MlpBlock::project(const at::Tensor& x_RD, MlpSaved& saved, at::Tensor& normed_RD,
                       const KeepTensor& keep) const {
  saved.x_RD = x_RD;
  saved.reciprocal_R =
      at::empty({x_RD.size(0)}, x_RD.options().dtype(statistics_of(x_RD.scalar_type())));
  keep(saved.reciprocal_R);
  rms_norm_forward(x_RD, norm_.value, eps_, normed_RD, saved.reciprocal_R);
  saved.gate_up_R2I = at::empty({x_RD.size(0), gate_up_.value.size(0)}, x_RD.options());
  keep(saved.gate_up_R2I);
  at::mm_out(saved.gate_up_R2I, normed_RD, gate_up_.value.t());
}

at::Tensor MlpBlock::forward(const at::Tensor& x_RD, MlpSaved& saved,
                             const KeepTensor& keep) const {
  at::Tensor normed_RD = at::empty_like(x_RD);
  if (keep_all_) {
    keep(normed_RD);
    saved.normed_RD = normed_RD;
  }
  project(x_RD, saved, normed_RD, keep);
  normed_RD.reset();
  at::Tensor activation_RI = at::empty({x_RD.size(0), down_.value.size(1)}, x_RD.options());
  if (keep_all_) {
    keep(activation_RI);
    saved.activation_RI = activation_RI;
  }
  swiglu_forward(saved.gate_up_R2I, activation_RI);
  at::Tensor y_RD = at::empty_like(x_RD);
  at::addmm_out(y_RD, x_RD, activation_RI, down_.value.t());
  return y_RD;
}

void MlpBlock::recompute(const at::Tensor& x_RD, MlpSaved& saved, const KeepTensor& keep) const {
  at::Tensor normed_RD = at::empty_like(x_RD);
  project(x_RD, saved, normed_RD, keep);
}

at::Tensor MlpBlock::backward(at::Tensor dy_RD, MlpSaved saved, WeightSink& sink) {
  sink.keep(dy_RD);
  // Becomes the activation unless that was saved.
  at::Tensor activation_RI = at::empty({dy_RD.size(0), down_.value.size(1)}, dy_RD.options());
  const bool rebuild = !saved.activation_RI.defined();
  if (rebuild) sink.keep(activation_RI);
  at::mm_out(activation_RI, dy_RD, down_.value);
  at::Tensor dgate_up_R2I = std::move(saved.gate_up_R2I);
  swiglu_backward(dgate_up_R2I, activation_RI, rebuild);
  if (!rebuild) activation_RI = std::move(saved.activation_RI);
  const at::Tensor residual_RD = dy_RD;
  sink.add(down_.gradient, std::move(dy_RD), std::move(activation_RI));

  at::Tensor normed_RD = at::empty_like(residual_RD);  // the gradient first, then the norm's output
  if (!saved.normed_RD.defined()) sink.keep(normed_RD);
  at::mm_out(normed_RD, dgate_up_R2I, gate_up_.value);
  at::Tensor dx_RD = at::empty_like(residual_RD);
  rms_norm_backward(saved.x_RD, norm_.value, saved.reciprocal_R, residual_RD, normed_RD,
                    !saved.normed_RD.defined(), dx_RD, norm_.gradient);
  if (saved.normed_RD.defined()) normed_RD = std::move(saved.normed_RD);
  saved = {};
  sink.add(gate_up_.gradient, std::move(dgate_up_R2I), std::move(normed_RD));
  return dx_RD;
}

void MlpBlock::backward_weight(at::Tensor* pairs) {
  for (Weight* weight : {&down_, &gate_up_}) {
    add_weight_gradient(weight->gradient, pairs[0], pairs[1]);
    pairs[0].reset();
    pairs[1].reset();
    pairs += 2;
  }
}

}  // namespace sluice
