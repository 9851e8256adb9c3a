#include "sluice/train/optimizer.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sluice/common/errors.h"
#include "sluice/train/adamw_loop.h"

namespace sluice {
namespace {

AdamWScalars scalars(const Parameter& parameter, const AdamOptions& options, double learning_rate,
                     double scale, std::int64_t step) {
  const auto t = static_cast<double>(step);
  const double correction1 = 1.0 - std::pow(options.beta1, t);
  const double correction2 = 1.0 - std::pow(options.beta2, t);
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .gradient_scale = scale,
          .keep = parameter.spec.decayed ? 1.0 - learning_rate * options.weight_decay : 1.0,
          .step_size = learning_rate / correction1,
          .inverse_sqrt_correction2 = 1.0 / std::sqrt(correction2),
          .epsilon = options.epsilon};
}

void step_with_aten(at::Tensor& value, at::Tensor& gradient, AdamState& state,
                    const AdamWScalars& s) {
  const at::Tensor g = gradient.mul(s.gradient_scale);
  state.exp_avg.mul_(s.beta1).add_(g, 1.0 - s.beta1);
  state.exp_avg_sq.mul_(s.beta2).addcmul_(g, g, 1.0 - s.beta2);
  const at::Tensor denominator =
      state.exp_avg_sq.sqrt().mul_(s.inverse_sqrt_correction2).add_(s.epsilon);
  value.mul_(s.keep).addcdiv_(state.exp_avg, denominator, -s.step_size);
  gradient.zero_();
}

template <typename T>
void step_on_cpu(at::Tensor& value, at::Tensor& gradient, AdamState& state, const AdamWScalars& s) {
  adamw_loop(value.data_ptr<T>(), gradient.data_ptr<T>(), state.exp_avg.data_ptr<T>(),
             state.exp_avg_sq.data_ptr<T>(), value.numel(), s);
}

}  // namespace

AdamState make_adam_state(const Parameter& parameter) {
  AdamState state;
  state.exp_avg = at::zeros_like(parameter.gradient);
  state.exp_avg_sq = at::zeros_like(parameter.gradient);
  if (parameter.value.scalar_type() != parameter.gradient.scalar_type()) {
    state.master = parameter.value.to(parameter.gradient.scalar_type());
  }
  return state;
}

double sum_squares(const at::Tensor& gradient) {
  if (gradient.device().is_cpu() && gradient.scalar_type() == at::kFloat) {
    return sum_squares_loop(gradient.data_ptr<float>(), gradient.numel());
  }
  if (gradient.device().is_cpu() && gradient.scalar_type() == at::kDouble) {
    return sum_squares_loop(gradient.data_ptr<double>(), gradient.numel());
  }
  return gradient.to(at::kDouble).square_().sum().item<double>();
}

void adamw_step(Parameter& parameter, AdamState& state, const AdamOptions& options,
                double learning_rate, double scale, std::int64_t step) {
  SLUICE_CHECK(step >= 1, "step {}", step);
  const AdamWScalars s = scalars(parameter, options, learning_rate, scale, step);
  at::Tensor& value = state.master.defined() ? state.master : parameter.value;
  if (!value.device().is_cpu()) {
    step_with_aten(value, parameter.gradient, state, s);
  } else if (value.scalar_type() == at::kFloat) {
    step_on_cpu<float>(value, parameter.gradient, state, s);
  } else {
    step_on_cpu<double>(value, parameter.gradient, state, s);
  }
  if (state.master.defined()) parameter.value.copy_(state.master);
}

double learning_rate_at(std::int64_t step, std::int64_t num_steps, std::int64_t warmup_steps,
                        double peak, double minimum) {
  if (step <= warmup_steps) {
    return peak * static_cast<double>(step) /
           static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
  }
  if (step >= num_steps) return minimum;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(num_steps - warmup_steps);
  return minimum + 0.5 * (peak - minimum) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace sluice
