#include "sluice/model/kernels.h"

namespace sluice {

void rms_norm_forward(const at::Tensor& x_RD, const at::Tensor& weight_D, double eps,
                      at::Tensor& y_RD, at::Tensor& reciprocal_R) {
  naive::rms_norm_forward(x_RD, weight_D, eps, y_RD, reciprocal_R);
}

void rms_norm_backward(const at::Tensor& x_RD, const at::Tensor& weight_D,
                       const at::Tensor& reciprocal_R, const at::Tensor& residual_gradient_RD,
                       at::Tensor& dy_RD, bool leave_y, at::Tensor& dx_RD,
                       at::Tensor& weight_gradient_D) {
  naive::rms_norm_backward(x_RD, weight_D, reciprocal_R, residual_gradient_RD, dy_RD, leave_y,
                           dx_RD, weight_gradient_D);
}

void rotary_forward(const at::Tensor& qkv_RD, const RotaryAngles& angles,
                    std::int64_t first_position, at::Tensor& q_BTHS, at::Tensor& k_BKTS,
                    at::Tensor& v_BKTS) {
  naive::rotary_forward(qkv_RD, angles, first_position, q_BTHS, k_BKTS, v_BKTS);
}

void rotary_backward(const at::Tensor& dq_BTHS, const at::Tensor& dk_BKTS,
                     const at::Tensor& dv_BKTS, const RotaryAngles& angles,
                     std::int64_t first_position, at::Tensor& dqkv_RD) {
  naive::rotary_backward(dq_BTHS, dk_BKTS, dv_BKTS, angles, first_position, dqkv_RD);
}

void swiglu_forward(const at::Tensor& gate_up_R2I, at::Tensor& activation_RI) {
  naive::swiglu_forward(gate_up_R2I, activation_RI);
}

void swiglu_backward(at::Tensor& gate_up_R2I, at::Tensor& gradient_to_activation_RI,
                     bool leave_activation) {
  naive::swiglu_backward(gate_up_R2I, gradient_to_activation_RI, leave_activation);
}

LossSum cross_entropy_tile(at::Tensor& logits_RV, const at::Tensor& targets_R,
                           const LossOptions& options, bool overwrite) {
  return naive::cross_entropy_tile(logits_RV, targets_R, options, overwrite);
}

void embedding_backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD,
                        at::Tensor& weight_gradient_VD) {
  naive::embedding_backward(tokens_R, dx_RD, weight_gradient_VD);
}

}  // namespace sluice
