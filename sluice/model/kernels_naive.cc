#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>

#include "sluice/model/dtype.h"
#include "sluice/model/kernels.h"

// The formulas as ATen calls: what every device runs that has no fused loop, and what the fused
// loops are tested against.
namespace sluice::naive {
namespace {

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor low = x.narrow(-1, 0, half);
  const at::Tensor high = x.narrow(-1, half, half);
  return at::cat({low * cosines - high * sines, high * cosines + low * sines}, -1);
}

}  // namespace

void rms_norm_forward(const at::Tensor& x_RD, const at::Tensor& weight_D, double eps,
                      at::Tensor& y_RD, at::Tensor& reciprocal_R) {
  const at::Tensor x = x_RD.to(statistics_of(x_RD.scalar_type()));
  const at::Tensor reciprocal = at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
  reciprocal_R.copy_(reciprocal.squeeze(-1));
  y_RD.copy_(x * reciprocal * weight_D);
}

void rms_norm_backward(const at::Tensor& x_RD, const at::Tensor& weight_D,
                       const at::Tensor& reciprocal_R, const at::Tensor& residual_gradient_RD,
                       at::Tensor& dy_RD, bool leave_y, at::Tensor& dx_RD,
                       at::Tensor& weight_gradient_D) {
  const at::ScalarType type = statistics_of(x_RD.scalar_type());
  const at::Tensor reciprocal = reciprocal_R.unsqueeze(-1);
  const at::Tensor normed = x_RD.to(type) * reciprocal;
  const at::Tensor dy = dy_RD.to(type);
  weight_gradient_D.add_((dy * normed).sum(0));
  const at::Tensor scaled = dy * weight_D;
  const at::Tensor through =
      reciprocal * (scaled - normed * (scaled * normed).mean(-1, /*keepdim=*/true));
  dx_RD.copy_(residual_gradient_RD.defined() ? residual_gradient_RD + through : through);
  if (leave_y) dy_RD.copy_(normed * weight_D);
}

void rotary_forward(const at::Tensor& qkv_RD, const RotaryAngles& angles,
                    std::int64_t first_position, at::Tensor& q_BTHS, at::Tensor& k_BKTS,
                    at::Tensor& v_BKTS) {
  const std::int64_t batch = q_BTHS.size(0), tokens = q_BTHS.size(1), heads = q_BTHS.size(2);
  const std::int64_t kv_heads = k_BKTS.size(1), size = q_BTHS.size(3);
  const at::Tensor rows = qkv_RD.view({batch, tokens, heads + 2 * kv_heads, size});
  const auto at_positions = [&](const at::Tensor& table) {
    return table.narrow(0, first_position, tokens).unsqueeze(1);  // [T, 1, S/2]
  };
  const at::Tensor cosines = at_positions(angles.cosines_PS);
  const at::Tensor sines = at_positions(angles.sines_PS);
  q_BTHS.copy_(rotate(rows.narrow(2, 0, heads), cosines, sines));
  k_BKTS.transpose(1, 2).copy_(rotate(rows.narrow(2, heads, kv_heads), cosines, sines));
  v_BKTS.transpose(1, 2).copy_(rows.narrow(2, heads + kv_heads, kv_heads));
}

void rotary_backward(const at::Tensor& dq_BTHS, const at::Tensor& dk_BKTS,
                     const at::Tensor& dv_BKTS, const RotaryAngles& angles,
                     std::int64_t first_position, at::Tensor& dqkv_RD) {
  const std::int64_t batch = dq_BTHS.size(0), tokens = dq_BTHS.size(1), heads = dq_BTHS.size(2);
  const std::int64_t kv_heads = dk_BKTS.size(1), size = dq_BTHS.size(3);
  const at::Tensor rows = dqkv_RD.view({batch, tokens, heads + 2 * kv_heads, size});
  const auto at_positions = [&](const at::Tensor& table) {
    return table.narrow(0, first_position, tokens).unsqueeze(1);
  };
  const at::Tensor cosines = at_positions(angles.cosines_PS);
  const at::Tensor backward_sines = -at_positions(angles.sines_PS);
  rows.narrow(2, 0, heads).copy_(rotate(dq_BTHS, cosines, backward_sines));
  rows.narrow(2, heads, kv_heads).copy_(rotate(dk_BKTS.transpose(1, 2), cosines, backward_sines));
  rows.narrow(2, heads + kv_heads, kv_heads).copy_(dv_BKTS.transpose(1, 2));
}

void swiglu_forward(const at::Tensor& gate_up_R2I, at::Tensor& activation_RI) {
  const std::int64_t width = activation_RI.size(1);
  const at::Tensor gate =
      gate_up_R2I.narrow(1, 0, width).to(statistics_of(gate_up_R2I.scalar_type()));
  const at::Tensor up = gate_up_R2I.narrow(1, width, width);
  activation_RI.copy_(gate * at::sigmoid(gate) * up);
}

void swiglu_backward(at::Tensor& gate_up_R2I, at::Tensor& gradient_to_activation_RI,
                     bool leave_activation) {
  const at::ScalarType type = statistics_of(gate_up_R2I.scalar_type());
  const std::int64_t width = gradient_to_activation_RI.size(1);
  const at::Tensor gate = gate_up_R2I.narrow(1, 0, width).to(type);
  const at::Tensor up = gate_up_R2I.narrow(1, width, width).to(type);
  const at::Tensor sigmoid = at::sigmoid(gate);
  const at::Tensor silu = gate * sigmoid;
  const at::Tensor gradient = gradient_to_activation_RI.to(type);
  const at::Tensor activation = silu * up;
  gate_up_R2I.narrow(1, 0, width).copy_(gradient * up * (sigmoid + silu * (1.0 - sigmoid)));
  gate_up_R2I.narrow(1, width, width).copy_(gradient * silu);
  if (leave_activation) gradient_to_activation_RI.copy_(activation);
}

LossSum cross_entropy_tile(at::Tensor& logits_RV, const at::Tensor& targets_R,
                           const LossOptions& options, bool overwrite) {
  const at::Tensor valid_R = targets_R != options.ignore_index;
  const at::Tensor index_R1 = at::where(valid_R, targets_R, 0).unsqueeze(-1);
  const at::Tensor lse_R = at::logsumexp(logits_RV, {-1});
  const at::Tensor valid = valid_R.to(at::kDouble);
  const at::Tensor lse = lse_R.to(at::kDouble);
  const at::Tensor cross_entropy = lse - logits_RV.gather(-1, index_R1).squeeze(-1).to(at::kDouble);
  LossSum tile;
  tile.cross_entropy = (cross_entropy * valid).sum().item<double>();
  tile.z_loss = options.z_loss * (lse.square() * valid).sum().item<double>();
  tile.num_targets = valid_R.sum().item<std::int64_t>();
  if (overwrite) {
    const at::Tensor scale_R1 = (valid_R.to(logits_RV.scalar_type()) * options.scale).unsqueeze(-1);
    logits_RV.copy_(at::exp(logits_RV - lse_R.unsqueeze(-1)) * scale_R1 *
                    (1.0 + 2.0 * options.z_loss * lse_R.unsqueeze(-1)));
    logits_RV.scatter_add_(-1, index_R1, -scale_R1);
  }
  return tile;
}

void softmax_tile(at::Tensor& logits_NW, at::Tensor& maximum_N, at::Tensor& sum_N,
                  at::Tensor& out_ND) {
  const at::Tensor now_N = at::maximum(maximum_N, logits_NW.amax(-1));
  const at::Tensor kept_N = at::exp(maximum_N - now_N);
  logits_NW.sub_(now_N.unsqueeze(-1)).exp_();
  sum_N.mul_(kept_N).add_(logits_NW.sum(-1));
  if (out_ND.defined()) out_ND.mul_(kept_N.unsqueeze(-1));
  maximum_N.copy_(now_N);
}

void embedding_backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD,
                        at::Tensor& weight_gradient_VD) {
  weight_gradient_VD.index_add_(0, tokens_R, dx_RD.to(weight_gradient_VD.scalar_type()));
}

}  // namespace sluice::naive
