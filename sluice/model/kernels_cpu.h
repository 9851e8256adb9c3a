// kernels_cpu.h - fused loops over raw rows, in one table per instruction set. Read next:
// kernels.h, whose contracts these follow.
//
// The loops are written once (kernels_cpu_loops.h) and compiled for AVX2 with FMA and for the
// baseline; cpu_kernels() picks by what the machine has. Every row is worked on by one thread, in
// one order, so results depend on the values alone. T is float or double.
#pragma once

#include <cstdint>

namespace sluice {

/// Sizes of the rotary loops: rows of `heads + 2 * kv_heads` heads of `size`, B sequences of T.
struct RotaryShape {
  std::int64_t batch, tokens, heads, kv_heads, size;
};

/// Strides of a [B,K,T,S] tensor whose last dimension is dense.
struct HeadStrides {
  std::int64_t batch, head, token;
};

template <typename T>
struct CpuKernels {
  void (*rms_norm_forward)(const T* x, const T* weight, double eps, T* y, T* reciprocal,
                           std::int64_t rows, std::int64_t columns);
  /// `residual` may be null. `scratch` has 2 * columns elements.
  void (*rms_norm_backward)(const T* x, const T* weight, const T* reciprocal, const T* residual,
                            T* dy, bool leave_y, T* dx, T* weight_gradient, T* scratch,
                            std::int64_t rows, std::int64_t columns);
  void (*rotary_forward)(const T* qkv, const T* cosines, const T* sines, const RotaryShape& shape,
                         T* q, T* k, T* v);
  void (*rotary_backward)(const T* dq, const T* dk, const HeadStrides& dk_strides, const T* dv,
                          const HeadStrides& dv_strides, const T* cosines, const T* sines,
                          const RotaryShape& shape, T* dqkv);
  void (*swiglu_forward)(const T* gate_up, T* activation, std::int64_t rows, std::int64_t width);
  void (*swiglu_backward)(T* gate_up, T* gradient, bool leave_activation, std::int64_t rows,
                          std::int64_t width);
  /// Overwrites a row with exp(row - max); returns the sum and the maximum.
  void (*exp_row)(T* row, std::int64_t columns, T* maximum, T* sum);
  /// exp_row() without writing.
  void (*exp_sum_row)(const T* row, std::int64_t columns, T* maximum, T* sum);
  void (*scale_row)(T* row, T factor, std::int64_t columns);
  void (*add_row)(const T* row, T* sum, std::int64_t columns);
  /// One tile of scores of running softmax: row r sees its first min(columns, first_visible + r)
  /// columns; the others become 0. Overwrites scores with exp(score - running maximum), updates
  /// maximum and sum per row, and multiplies row r of `out` by what the new maximum takes from it.
  void (*softmax_tile)(T* scores, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                       std::int64_t first_visible, T* maximum, T* sum, T* out,
                       std::int64_t out_leading, std::int64_t size);
  /// Merges rows of two running softmaxes over different columns: maximum and sum of `part` into
  /// maximum and sum, rows of part into rows of out, each scaled to the larger maximum.
  void (*merge_rows)(const T* part, std::int64_t part_leading, const T* part_maximum,
                     const T* part_sum, T* out, std::int64_t out_leading, T* maximum, T* sum,
                     std::int64_t rows, std::int64_t size);
  /// The same tile in backward: scores becomes p = exp(score - lse), dp becomes
  /// p * (dp - row_term) * scale; both 0 where a row does not see.
  void (*softmax_backward_tile)(T* scores, T* dp, std::int64_t rows, std::int64_t columns,
                                std::int64_t leading, std::int64_t first_visible, const T* lse,
                                const T* row_term, T scale);
  /// sum of a[i] * b[i].
  T (*dot)(const T* a, const T* b, std::int64_t size);
};

/// The fastest table this machine can run.
template <typename T>
const CpuKernels<T>& cpu_kernels();

/// Every table this machine can run, the baseline first, for tests.
template <typename T>
struct NamedCpuKernels {
  const char* name;
  const CpuKernels<T>* kernels;
};
int num_cpu_kernel_tables();
template <typename T>
NamedCpuKernels<T> cpu_kernel_table(int index);

}  // namespace sluice
