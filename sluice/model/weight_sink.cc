#include "sluice/model/weight_sink.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <utility>

namespace sluice {

void add_weight_gradient(at::Tensor& gradient_NM, const at::Tensor& dy_RN, const at::Tensor& x_RM) {
  if (gradient_NM.scalar_type() == x_RM.scalar_type()) {
    at::addmm_out(gradient_NM, gradient_NM, dy_RN.t(), x_RM);
  } else if (gradient_NM.is_cuda()) {
    gradient_NM.add_(at::mm(dy_RN.t(), x_RM, gradient_NM.scalar_type()));
  } else {
    gradient_NM.add_(at::mm(dy_RN.t(), x_RM));
  }
}

void WeightSink::add(at::Tensor& gradient_NM, at::Tensor dy_RN, at::Tensor x_RM) {
  if (saved_ == nullptr) {
    add_weight_gradient(gradient_NM, dy_RN, x_RM);
  } else {
    saved_->tensors.push_back(std::move(dy_RN));
    saved_->tensors.push_back(std::move(x_RM));
  }
}

}  // namespace sluice
