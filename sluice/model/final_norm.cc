#include "sluice/model/final_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/dtype.h"
#include "sluice/model/kernels.h"

namespace sluice {

FinalNorm::FinalNorm(const WeightMaker& maker)
    : epsilon_(maker.config.rms_norm_eps),
      weight_(maker.make({norm_spec("model.norm.weight", maker.config.hidden_size)})) {}

at::Tensor FinalNorm::apply(const at::Tensor& x_RD, at::Tensor& reciprocal_R) const {
  reciprocal_R = at::empty({x_RD.size(0)}, x_RD.options().dtype(statistics_of(x_RD.scalar_type())));
  at::Tensor y_RD = at::empty_like(x_RD);
  rms_norm_forward(x_RD, weight_.value, epsilon_, y_RD, reciprocal_R);
  return y_RD;
}

at::Tensor FinalNorm::forward(at::Tensor x_RD, SavedTensors& saved, const KeepTensor& keep) const {
  keep(x_RD);
  at::Tensor reciprocal_R;
  at::Tensor y_RD = apply(x_RD, reciprocal_R);
  keep(reciprocal_R);
  saved.tensors = {std::move(x_RD), std::move(reciprocal_R)};
  return y_RD;
}

at::Tensor FinalNorm::backward(at::Tensor dy_RD, SavedTensors& saved) {
  SLUICE_CHECK(saved.tensors.size() == 2);
  const at::Tensor x_RD = std::move(saved.tensors[0]);
  const at::Tensor reciprocal_R = std::move(saved.tensors[1]);
  saved.tensors.clear();
  at::Tensor dx_RD = at::empty_like(x_RD);
  rms_norm_backward(x_RD, weight_.value, reciprocal_R, /*residual_gradient_RD=*/{}, dy_RD,
                    /*leave_y=*/false, dx_RD, weight_.gradient);
  return dx_RD;
}

at::Tensor FinalNorm::evaluate(const at::Tensor& x_RD) const {
  at::Tensor reciprocal_R;
  return apply(x_RD, reciprocal_R);
}

}  // namespace sluice
