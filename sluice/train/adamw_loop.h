// adamw_loop.h - the loops of AdamW and of the norm over plain arrays; compiled for the vector
// units of the machine. Free of torch.
#pragma once

#include <cstdint>

namespace sluice {

/// The numbers of one AdamW step; keep = 1 - learning rate * weight decay.
struct AdamWScalars {
  double beta1, beta2;
  double gradient_scale;
  double keep;
  double step_size;                 // learning rate / (1 - beta1^t)
  double inverse_sqrt_correction2;  // 1 / sqrt(1 - beta2^t)
  double epsilon;
};

/// One pass over the arrays; afterwards gradient[i] is 0. Elements do not depend on each other, so
/// the result is the same whatever the vector width.
void adamw_loop(float* value, float* gradient, float* exp_avg, float* exp_avg_sq,
                std::int64_t count, const AdamWScalars& scalars);
void adamw_loop(double* value, double* gradient, double* exp_avg, double* exp_avg_sq,
                std::int64_t count, const AdamWScalars& scalars);

/// Sum of squares in fp64: sixteen running sums over the elements i mod 16, added in order.
double sum_squares_loop(const float* values, std::int64_t count);
double sum_squares_loop(const double* values, std::int64_t count);

}  // namespace sluice
