// kernels.h - the loops of a Llama layer that are not matrix products. Read next: kernels_cpu.h.
//
// Each function takes the fused CPU loop where there is one (contiguous fp32 or fp64 on a CPU) and
// ATen calls elsewhere; the functions in namespace naive are those ATen calls, and the tests'
// twins. Matrices are contiguous. R rows (tokens), D columns, H query heads, K key-value heads, S
// head size, I intermediate size, V columns of a tile of logits. Statistics are fp32 (fp64 for
// fp64). Results depend on the values alone, not on the thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sluice/model/loss.h"

namespace sluice {

/// Rows of `cosines`/`sines` are absolute positions, columns half a head; statistics type.
struct RotaryAngles {
  at::Tensor cosines_PS, sines_PS;
};

/// y = x / sqrt(mean(x^2) + eps) * weight; reciprocal_R receives 1 / sqrt(...).
void rms_norm_forward(const at::Tensor& x_RD, const at::Tensor& weight_D, double eps,
                      at::Tensor& y_RD, at::Tensor& reciprocal_R);

/// Writes dx = residual_gradient (undefined: 0) + the gradient through the norm, adds to
/// weight_gradient_D, and overwrites dy_RD with the norm's output y when `leave_y`.
void rms_norm_backward(const at::Tensor& x_RD, const at::Tensor& weight_D,
                       const at::Tensor& reciprocal_R, const at::Tensor& residual_gradient_RD,
                       at::Tensor& dy_RD, bool leave_y, at::Tensor& dx_RD,
                       at::Tensor& weight_gradient_D);

/// Splits rows of (q heads, k heads, v heads) and rotates q and k by their absolute position,
/// halves of a head against each other: q [B,T,H,S], k and v [B,K,T,S].
void rotary_forward(const at::Tensor& qkv_RD, const RotaryAngles& angles,
                    std::int64_t first_position, at::Tensor& q_BTHS, at::Tensor& k_BKTS,
                    at::Tensor& v_BKTS);

/// The transpose of rotary_forward(): gathers dq, dk, dv into rows of dqkv. dk and dv may have
/// another type (statistics) and any strides.
void rotary_backward(const at::Tensor& dq_BTHS, const at::Tensor& dk_BKTS,
                     const at::Tensor& dv_BKTS, const RotaryAngles& angles,
                     std::int64_t first_position, at::Tensor& dqkv_RD);

/// activation = silu(gate) * up, where a row of gate_up is (gate, up).
void swiglu_forward(const at::Tensor& gate_up_R2I, at::Tensor& activation_RI);

/// Overwrites gate_up with its gradient and, when `leave_activation`, the incoming gradient with
/// the activation.
void swiglu_backward(at::Tensor& gate_up_R2I, at::Tensor& gradient_to_activation_RI,
                     bool leave_activation);

/// Softmax cross entropy of a tile of logits (statistics type); with `overwrite` the logits become
/// the gradient of the total loss. Rows whose target is ignore_index give zeros.
LossSum cross_entropy_tile(at::Tensor& logits_RV, const at::Tensor& targets_R,
                           const LossOptions& options, bool overwrite);

/// Running softmax over one more tile of logits (statistics type): overwrites them with
/// exp(logit - maximum), updates maximum and sum of each row, and takes from every row of `out`
/// (may be undefined) what the maximum gained.
void softmax_tile(at::Tensor& logits_NW, at::Tensor& maximum_N, at::Tensor& sum_N,
                  at::Tensor& out_ND);

/// Adds row r of dx to row tokens[r] of the gradient, in the order of r.
void embedding_backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD,
                        at::Tensor& weight_gradient_VD);

namespace naive {
void rms_norm_forward(const at::Tensor& x_RD, const at::Tensor& weight_D, double eps,
                      at::Tensor& y_RD, at::Tensor& reciprocal_R);
void rms_norm_backward(const at::Tensor& x_RD, const at::Tensor& weight_D,
                       const at::Tensor& reciprocal_R, const at::Tensor& residual_gradient_RD,
                       at::Tensor& dy_RD, bool leave_y, at::Tensor& dx_RD,
                       at::Tensor& weight_gradient_D);
void rotary_forward(const at::Tensor& qkv_RD, const RotaryAngles& angles,
                    std::int64_t first_position, at::Tensor& q_BTHS, at::Tensor& k_BKTS,
                    at::Tensor& v_BKTS);
void rotary_backward(const at::Tensor& dq_BTHS, const at::Tensor& dk_BKTS,
                     const at::Tensor& dv_BKTS, const RotaryAngles& angles,
                     std::int64_t first_position, at::Tensor& dqkv_RD);
void swiglu_forward(const at::Tensor& gate_up_R2I, at::Tensor& activation_RI);
void swiglu_backward(at::Tensor& gate_up_R2I, at::Tensor& gradient_to_activation_RI,
                     bool leave_activation);
LossSum cross_entropy_tile(at::Tensor& logits_RV, const at::Tensor& targets_R,
                           const LossOptions& options, bool overwrite);
void softmax_tile(at::Tensor& logits_NW, at::Tensor& maximum_N, at::Tensor& sum_N,
                  at::Tensor& out_ND);
void embedding_backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD,
                        at::Tensor& weight_gradient_VD);
}  // namespace naive

}  // namespace sluice
