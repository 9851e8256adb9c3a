// optimizer.h - AdamW (arXiv 1711.05101) on one parameter, the parts of the global norm, and the
// learning rate. Read next: rank_model.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sluice/model/parameter.h"

namespace sluice {

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // decoupled; of parameters whose spec says `decayed`
};

/// Moments of one parameter, in the gradient's dtype (fp32, or fp64 for fp64 models), zero at
/// start. `master` is the fp32 weight of a bf16 parameter and undefined otherwise.
struct AdamState {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor master;
};

/// State for `parameter`, on its device. A master starts from the parameter's value.
AdamState make_adam_state(const Parameter& parameter);

/// Sum of squares in fp64, in an order that depends on the number of elements alone.
double sum_squares(const at::Tensor& gradient);

/// One AdamW step number `step` (from 1) with the gradient times `scale`; then zeroes the gradient.
/// On a CPU one pass over memory; elsewhere ATen ops.
void adamw_step(Parameter& parameter, AdamState& state, const AdamOptions& options,
                double learning_rate, double scale, std::int64_t step);

/// Rises in a line to `peak` over `warmup_steps`, then follows half a cosine to `minimum` at
/// `num_steps`. `step` counts from 1.
double learning_rate_at(std::int64_t step, std::int64_t num_steps, std::int64_t warmup_steps,
                        double peak, double minimum);

}  // namespace sluice
