#include "sluice/train/adamw_loop.h"

#include <cmath>

// The same loop is compiled for several instruction sets and chosen at start. Contraction to fused
// multiply-add would make the clones differ, so the build turns it off for this file.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SLUICE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SLUICE_CLONES
#endif

namespace sluice {
namespace {

template <typename T>
[[gnu::always_inline]] inline void adamw(T* __restrict value, T* __restrict gradient,
                                         T* __restrict exp_avg, T* __restrict exp_avg_sq,
                                         std::int64_t count, const AdamWScalars& scalars) {
  const T beta1 = static_cast<T>(scalars.beta1);
  const T beta2 = static_cast<T>(scalars.beta2);
  const T rest1 = static_cast<T>(1.0 - scalars.beta1);
  const T rest2 = static_cast<T>(1.0 - scalars.beta2);
  const T scale = static_cast<T>(scalars.gradient_scale);
  const T keep = static_cast<T>(scalars.keep);
  const T step_size = static_cast<T>(scalars.step_size);
  const T correction = static_cast<T>(scalars.inverse_sqrt_correction2);
  const T epsilon = static_cast<T>(scalars.epsilon);
  for (std::int64_t i = 0; i < count; ++i) {
    const T g = gradient[i] * scale;
    const T m = beta1 * exp_avg[i] + rest1 * g;
    const T v = beta2 * exp_avg_sq[i] + rest2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    value[i] = keep * value[i] - step_size * m / (std::sqrt(v) * correction + epsilon);
    gradient[i] = 0;
  }
}

template <typename T>
[[gnu::always_inline]] inline double squares(const T* values, std::int64_t count) {
  constexpr int kLanes = 16;
  double sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = static_cast<double>(values[i + lane]);
      sums[lane] += x * x;
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const double x = static_cast<double>(values[i]);
    sums[lane] += x * x;
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

SLUICE_CLONES void adamw_loop(float* value, float* gradient, float* exp_avg, float* exp_avg_sq,
                              std::int64_t count, const AdamWScalars& scalars) {
  adamw(value, gradient, exp_avg, exp_avg_sq, count, scalars);
}

SLUICE_CLONES void adamw_loop(double* value, double* gradient, double* exp_avg, double* exp_avg_sq,
                              std::int64_t count, const AdamWScalars& scalars) {
  adamw(value, gradient, exp_avg, exp_avg_sq, count, scalars);
}

SLUICE_CLONES double sum_squares_loop(const float* values, std::int64_t count) {
  return squares(values, count);
}

SLUICE_CLONES double sum_squares_loop(const double* values, std::int64_t count) {
  return squares(values, count);
}

}  // namespace sluice
