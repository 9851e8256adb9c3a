#include "sluice/model/kernels.h"

#include <cmath>
#include <vector>

#include "sluice/model/kernels_cpu.h"

namespace sluice {
namespace {

// Calls run(T{}) for fp32 or fp64 on a CPU, where fused loops exist; returns whether it did.
template <typename Run>
bool on_cpu(const at::Tensor& tensor, Run run) {
  if (!tensor.is_cpu()) return false;
  if (tensor.scalar_type() == at::kFloat) {
    run(float{});
    return true;
  }
  if (tensor.scalar_type() == at::kDouble) {
    run(double{});
    return true;
  }
  return false;
}

template <typename T>
const T* read(const at::Tensor& tensor) {
  return tensor.const_data_ptr<T>();
}
template <typename T>
T* write(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<T>();
}

RotaryShape rotary_shape(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) {
  return {q_BTHS.size(0), q_BTHS.size(1), q_BTHS.size(2), k_BKTS.size(1), q_BTHS.size(3)};
}

HeadStrides strides_of(const at::Tensor& k_BKTS) {
  return {k_BKTS.stride(0), k_BKTS.stride(1), k_BKTS.stride(2)};
}

template <typename T>
LossSum cross_entropy_rows(T* logits, const std::int64_t* targets, std::int64_t rows,
                           std::int64_t columns, const LossOptions& options, bool overwrite) {
  const CpuKernels<T>& loops = cpu_kernels<T>();
  LossSum tile;
  for (std::int64_t row = 0; row < rows; ++row, logits += columns) {
    const std::int64_t target = targets[row];
    if (target == options.ignore_index) {
      if (overwrite) loops.scale_row(logits, T{0}, columns);
      continue;
    }
    const auto target_logit = static_cast<double>(logits[target]);
    T maximum = 0, sum = 0;
    if (overwrite) {
      loops.exp_row(logits, columns, &maximum, &sum);
    } else {
      loops.exp_sum_row(logits, columns, &maximum, &sum);
    }
    const double lse = static_cast<double>(maximum) + std::log(static_cast<double>(sum));
    tile.cross_entropy += lse - target_logit;
    tile.z_loss += options.z_loss * lse * lse;
    ++tile.num_targets;
    if (overwrite) {
      const double factor =
          options.scale * (1.0 + 2.0 * options.z_loss * lse) / static_cast<double>(sum);
      loops.scale_row(logits, static_cast<T>(factor), columns);
      logits[target] -= static_cast<T>(options.scale);
    }
  }
  return tile;
}

}  // namespace

void rms_norm_forward(const at::Tensor& x_RD, const at::Tensor& weight_D, double eps,
                      at::Tensor& y_RD, at::Tensor& reciprocal_R) {
  const bool fused = on_cpu(x_RD, [&]<typename T>(T) {
    cpu_kernels<T>().rms_norm_forward(read<T>(x_RD), read<T>(weight_D), eps, write<T>(y_RD),
                                      write<T>(reciprocal_R), x_RD.size(0), x_RD.size(1));
  });
  if (!fused) naive::rms_norm_forward(x_RD, weight_D, eps, y_RD, reciprocal_R);
}

void rms_norm_backward(const at::Tensor& x_RD, const at::Tensor& weight_D,
                       const at::Tensor& reciprocal_R, const at::Tensor& residual_gradient_RD,
                       at::Tensor& dy_RD, bool leave_y, at::Tensor& dx_RD,
                       at::Tensor& weight_gradient_D) {
  const bool fused = on_cpu(x_RD, [&]<typename T>(T) {
    std::vector<T> scratch(static_cast<std::size_t>(2 * x_RD.size(1)));
    cpu_kernels<T>().rms_norm_backward(
        read<T>(x_RD), read<T>(weight_D), read<T>(reciprocal_R),
        residual_gradient_RD.defined() ? read<T>(residual_gradient_RD) : nullptr, write<T>(dy_RD),
        leave_y, write<T>(dx_RD), write<T>(weight_gradient_D), scratch.data(), x_RD.size(0),
        x_RD.size(1));
  });
  if (!fused) {
    naive::rms_norm_backward(x_RD, weight_D, reciprocal_R, residual_gradient_RD, dy_RD, leave_y,
                             dx_RD, weight_gradient_D);
  }
}

void rotary_forward(const at::Tensor& qkv_RD, const RotaryAngles& angles,
                    std::int64_t first_position, at::Tensor& q_BTHS, at::Tensor& k_BKTS,
                    at::Tensor& v_BKTS) {
  const bool fused = on_cpu(qkv_RD, [&]<typename T>(T) {
    const std::int64_t offset = first_position * angles.cosines_PS.size(1);
    cpu_kernels<T>().rotary_forward(read<T>(qkv_RD), read<T>(angles.cosines_PS) + offset,
                                    read<T>(angles.sines_PS) + offset, rotary_shape(q_BTHS, k_BKTS),
                                    write<T>(q_BTHS), write<T>(k_BKTS), write<T>(v_BKTS));
  });
  if (!fused) naive::rotary_forward(qkv_RD, angles, first_position, q_BTHS, k_BKTS, v_BKTS);
}

void rotary_backward(const at::Tensor& dq_BTHS, const at::Tensor& dk_BKTS,
                     const at::Tensor& dv_BKTS, const RotaryAngles& angles,
                     std::int64_t first_position, at::Tensor& dqkv_RD) {
  const bool dense = dk_BKTS.stride(3) == 1 && dv_BKTS.stride(3) == 1;
  const bool fused =
      dense && on_cpu(dqkv_RD, [&]<typename T>(T) {
        const std::int64_t offset = first_position * angles.cosines_PS.size(1);
        cpu_kernels<T>().rotary_backward(
            read<T>(dq_BTHS), read<T>(dk_BKTS), strides_of(dk_BKTS), read<T>(dv_BKTS),
            strides_of(dv_BKTS), read<T>(angles.cosines_PS) + offset,
            read<T>(angles.sines_PS) + offset, rotary_shape(dq_BTHS, dk_BKTS), write<T>(dqkv_RD));
      });
  if (!fused) naive::rotary_backward(dq_BTHS, dk_BKTS, dv_BKTS, angles, first_position, dqkv_RD);
}

void swiglu_forward(const at::Tensor& gate_up_R2I, at::Tensor& activation_RI) {
  const bool fused = on_cpu(gate_up_R2I, [&]<typename T>(T) {
    cpu_kernels<T>().swiglu_forward(read<T>(gate_up_R2I), write<T>(activation_RI),
                                    activation_RI.size(0), activation_RI.size(1));
  });
  if (!fused) naive::swiglu_forward(gate_up_R2I, activation_RI);
}

void swiglu_backward(at::Tensor& gate_up_R2I, at::Tensor& gradient_to_activation_RI,
                     bool leave_activation) {
  const bool fused = on_cpu(gate_up_R2I, [&]<typename T>(T) {
    cpu_kernels<T>().swiglu_backward(write<T>(gate_up_R2I), write<T>(gradient_to_activation_RI),
                                     leave_activation, gradient_to_activation_RI.size(0),
                                     gradient_to_activation_RI.size(1));
  });
  if (!fused) naive::swiglu_backward(gate_up_R2I, gradient_to_activation_RI, leave_activation);
}

LossSum cross_entropy_tile(at::Tensor& logits_RV, const at::Tensor& targets_R,
                           const LossOptions& options, bool overwrite) {
  LossSum tile;
  const bool fused = on_cpu(logits_RV, [&]<typename T>(T) {
    tile = cross_entropy_rows(write<T>(logits_RV), targets_R.const_data_ptr<std::int64_t>(),
                              logits_RV.size(0), logits_RV.size(1), options, overwrite);
  });
  return fused ? tile : naive::cross_entropy_tile(logits_RV, targets_R, options, overwrite);
}

void softmax_tile(at::Tensor& logits_NW, at::Tensor& maximum_N, at::Tensor& sum_N,
                  at::Tensor& out_ND) {
  const bool fused = on_cpu(logits_NW, [&]<typename T>(T) {
    const std::int64_t columns = logits_NW.size(1), size = out_ND.defined() ? out_ND.size(1) : 0;
    cpu_kernels<T>().softmax_tile(write<T>(logits_NW), logits_NW.size(0), columns, columns, columns,
                                  write<T>(maximum_N), write<T>(sum_N),
                                  size > 0 ? write<T>(out_ND) : nullptr, size, size);
  });
  if (!fused) naive::softmax_tile(logits_NW, maximum_N, sum_N, out_ND);
}

void embedding_backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD,
                        at::Tensor& weight_gradient_VD) {
  const bool fused = on_cpu(dx_RD, [&]<typename T>(T) {
    const std::int64_t* tokens = tokens_R.const_data_ptr<std::int64_t>();
    const std::int64_t columns = dx_RD.size(1);
    for (std::int64_t row = 0; row < dx_RD.size(0); ++row) {
      cpu_kernels<T>().add_row(read<T>(dx_RD) + row * columns,
                               write<T>(weight_gradient_VD) + tokens[row] * columns, columns);
    }
  });
  if (!fused) naive::embedding_backward(tokens_R, dx_RD, weight_gradient_VD);
}

}  // namespace sluice
