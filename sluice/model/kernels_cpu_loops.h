// kernels_cpu_loops.h - the loops behind kernels_cpu.h. Included once by every file that compiles
// them for an instruction set; everything is local to that file, and no inline function of the
// standard library is used, so that no code for one instruction set can end up in another's
// callers.
#pragma once

#include <cstdint>

#include "sluice/model/kernels_cpu.h"

namespace sluice {
namespace {

// 32 bytes at a time, written with the compiler's vector types: one AVX register, two on the
// baseline.
template <typename T>
struct Lanes;
template <>
struct Lanes<float> {
  using Vector __attribute__((vector_size(32))) = float;
  using Integer __attribute__((vector_size(32))) = std::int32_t;
  static constexpr std::int64_t kCount = 8;
};
template <>
struct Lanes<double> {
  using Vector __attribute__((vector_size(32))) = double;
  using Integer __attribute__((vector_size(32))) = std::int64_t;
  static constexpr std::int64_t kCount = 4;
};
template <typename T>
using Vector = typename Lanes<T>::Vector;
template <typename T>
using Integer = typename Lanes<T>::Integer;
template <typename T>
constexpr std::int64_t kLanes = Lanes<T>::kCount;

template <typename T>
Vector<T> load(const T* from) {
  Vector<T> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
template <typename T>
void store(T* to, const Vector<T>& value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
template <typename T>
Vector<T> load_part(const T* from, std::int64_t count) {
  Vector<T> value = {};
  __builtin_memcpy(&value, from, static_cast<std::size_t>(count) * sizeof(T));
  return value;
}
template <typename T>
void store_part(T* to, const Vector<T>& value, std::int64_t count) {
  __builtin_memcpy(to, &value, static_cast<std::size_t>(count) * sizeof(T));
}
template <typename T>
Vector<T> all(T value) {
  return value - Vector<T>{};
}
template <typename T>
Vector<T> larger(const Vector<T>& a, const Vector<T>& b) {
  return a > b ? a : b;
}
template <typename T>
T sum_of(const Vector<T>& value) {
  T sum = 0;
  for (std::int64_t i = 0; i < kLanes<T>; ++i) sum += value[i];
  return sum;
}
template <typename T>
T largest_of(const Vector<T>& value) {
  T largest = value[0];
  for (std::int64_t i = 1; i < kLanes<T>; ++i) largest = value[i] > largest ? value[i] : largest;
  return largest;
}

// exp by 2^n * p(r), r = x - n ln 2 in two parts, |r| <= ln 2 / 2, p its Taylor series to rounding.
// Arguments are clamped to where the result is a normal number.
inline Vector<float> exp_of(Vector<float> x) {
  x = larger<float>(x, all(-87.3365f));
  x = x < all(88.3762f) ? x : all(88.3762f);
  const Vector<float> shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const Vector<float> n = shifted - 12582912.0f;
  Vector<float> r = x - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  Vector<float> p = all(1.0f / 5040.0f);
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Integer<float> exponent = (Integer<float>)shifted << 23;
  return (Vector<float>)((Integer<float>)p + exponent);
}

inline Vector<double> exp_of(Vector<double> x) {
  x = larger<double>(x, all(-708.39));
  x = x < all(709.0) ? x : all(709.0);
  const Vector<double> shifted = x * 1.4426950408889634 + 6755399441055744.0;  // 1.5 * 2^52
  const Vector<double> n = shifted - 6755399441055744.0;
  Vector<double> r = x - n * 0.693147180369123816490;
  r = r - n * 1.90821492927058770002e-10;
  Vector<double> p = all(1.0 / 6227020800.0);
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const Integer<double> exponent = (Integer<double>)shifted << 52;
  return (Vector<double>)((Integer<double>)p + exponent);
}

template <typename T>
T exp_of_one(T x) {
  return exp_of(all(x))[0];
}

// Calls body(index, count) for each full vector, then once for what is left.
template <typename T, typename Body>
void for_each_vector(std::int64_t size, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= size; i += kLanes<T>) body(i, kLanes<T>);
  if (i < size) body(i, size - i);
}
template <typename T>
Vector<T> load_up_to(const T* from, std::int64_t count) {
  return count == kLanes<T> ? load(from) : load_part(from, count);
}
template <typename T>
void store_up_to(T* to, const Vector<T>& value, std::int64_t count) {
  if (count == kLanes<T>) {
    store(to, value);
  } else {
    store_part(to, value, count);
  }
}

template <typename T>
T dot(const T* a, const T* b, std::int64_t size) {
  Vector<T> even = {}, odd = {};
  std::int64_t i = 0;
  for (; i + 2 * kLanes<T> <= size; i += 2 * kLanes<T>) {
    even += load(a + i) * load(b + i);
    odd += load(a + i + kLanes<T>) * load(b + i + kLanes<T>);
  }
  for (; i < size; i += kLanes<T>) {
    const std::int64_t count = size - i < kLanes<T> ? size - i : kLanes<T>;
    even += load_up_to(a + i, count) * load_up_to(b + i, count);
  }
  return sum_of<T>(even + odd);
}

template <typename T>
void rms_norm_forward(const T* x, const T* weight, double eps, T* y, T* reciprocal,
                      std::int64_t rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    const T mean = dot(x, x, columns) / static_cast<T>(columns);
    const T scale = T{1} / static_cast<T>(__builtin_sqrt(static_cast<double>(mean) + eps));
    reciprocal[row] = scale;
    for_each_vector<T>(columns, [&](std::int64_t i, std::int64_t count) {
      store_up_to<T>(y + i, load_up_to(x + i, count) * scale * load_up_to(weight + i, count),
                     count);
    });
  }
}

// Rows whose weight gradients are summed before they join the rest, to bound rounding.
constexpr std::int64_t kRowsPerSum = 64;

template <typename T>
void rms_norm_backward(const T* x, const T* weight, const T* reciprocal, const T* residual, T* dy,
                       bool leave_y, T* dx, T* weight_gradient, T* scratch, std::int64_t rows,
                       std::int64_t columns) {
  T* const part = scratch;
  T* const total = scratch + columns;
  for (std::int64_t i = 0; i < 2 * columns; ++i) scratch[i] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const T scale = reciprocal[row];
    Vector<T> product = {};
    for_each_vector<T>(columns, [&](std::int64_t i, std::int64_t count) {
      const Vector<T> through = load_up_to(dy + i, count) * load_up_to(x + i, count);
      store_up_to<T>(part + i, load_up_to(part + i, count) + through * scale, count);
      product += through * load_up_to(weight + i, count);
    });
    // mean over the row of g * xh, where g = dy * weight and xh = x * scale, times another scale.
    const T mean = sum_of<T>(product) * scale * scale / static_cast<T>(columns);
    for_each_vector<T>(columns, [&](std::int64_t i, std::int64_t count) {
      const Vector<T> value = load_up_to(x + i, count);
      const Vector<T> gain = load_up_to(weight + i, count);
      Vector<T> gradient = (load_up_to(dy + i, count) * gain - value * mean) * scale;
      if (residual != nullptr) gradient += load_up_to(residual + i, count);
      store_up_to<T>(dx + i, gradient, count);
      if (leave_y) store_up_to<T>(dy + i, value * scale * gain, count);
    });
    x += columns;
    dy += columns;
    dx += columns;
    if (residual != nullptr) residual += columns;
    if ((row + 1) % kRowsPerSum == 0 || row + 1 == rows) {
      for (std::int64_t i = 0; i < columns; ++i) {
        total[i] += part[i];
        part[i] = 0;
      }
    }
  }
  for (std::int64_t i = 0; i < columns; ++i) weight_gradient[i] += total[i];
}

// Rotates the halves of one head against each other; `sign` -1 turns back.
template <typename T>
void rotate_head(const T* from, const T* cosines, const T* sines, T sign, std::int64_t half,
                 T* to) {
  for_each_vector<T>(half, [&](std::int64_t i, std::int64_t count) {
    const Vector<T> cosine = load_up_to(cosines + i, count);
    const Vector<T> sine = load_up_to(sines + i, count) * sign;
    const Vector<T> low = load_up_to(from + i, count);
    const Vector<T> high = load_up_to(from + half + i, count);
    store_up_to<T>(to + i, low * cosine - high * sine, count);
    store_up_to<T>(to + half + i, high * cosine + low * sine, count);
  });
}

template <typename T>
void copy_row(const T* from, T* to, std::int64_t size) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(size) * sizeof(T));
}

template <typename T>
void rotary_forward(const T* qkv, const T* cosines, const T* sines, const RotaryShape& shape, T* q,
                    T* k, T* v) {
  const std::int64_t half = shape.size / 2;
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t token = 0; token < shape.tokens; ++token) {
      const T* cosine = cosines + token * half;
      const T* sine = sines + token * half;
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        rotate_head(qkv, cosine, sine, T{1}, half, q);
        qkv += shape.size;
        q += shape.size;
      }
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const std::int64_t row = (batch * shape.kv_heads + head) * shape.tokens + token;
        rotate_head(qkv, cosine, sine, T{1}, half, k + row * shape.size);
        copy_row(qkv + shape.kv_heads * shape.size, v + row * shape.size, shape.size);
        qkv += shape.size;
      }
      qkv += shape.kv_heads * shape.size;
    }
  }
}

template <typename T>
void rotary_backward(const T* dq, const T* dk, const HeadStrides& dk_strides, const T* dv,
                     const HeadStrides& dv_strides, const T* cosines, const T* sines,
                     const RotaryShape& shape, T* dqkv) {
  const std::int64_t half = shape.size / 2;
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t token = 0; token < shape.tokens; ++token) {
      const T* cosine = cosines + token * half;
      const T* sine = sines + token * half;
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        rotate_head(dq, cosine, sine, T{-1}, half, dqkv);
        dqkv += shape.size;
        dq += shape.size;
      }
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const T* k_row =
            dk + batch * dk_strides.batch + head * dk_strides.head + token * dk_strides.token;
        const T* v_row =
            dv + batch * dv_strides.batch + head * dv_strides.head + token * dv_strides.token;
        rotate_head(k_row, cosine, sine, T{-1}, half, dqkv);
        copy_row(v_row, dqkv + shape.kv_heads * shape.size, shape.size);
        dqkv += shape.size;
      }
      dqkv += shape.kv_heads * shape.size;
    }
  }
}

template <typename T>
Vector<T> sigmoid_of(const Vector<T>& x) {
  return T{1} / (T{1} + exp_of(-x));
}

template <typename T>
void swiglu_forward(const T* gate_up, T* activation, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row, gate_up += 2 * width, activation += width) {
    for_each_vector<T>(width, [&](std::int64_t i, std::int64_t count) {
      const Vector<T> gate = load_up_to(gate_up + i, count);
      const Vector<T> up = load_up_to(gate_up + width + i, count);
      store_up_to<T>(activation + i, gate * sigmoid_of<T>(gate) * up, count);
    });
  }
}

template <typename T>
void swiglu_backward(T* gate_up, T* gradient, bool leave_activation, std::int64_t rows,
                     std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row, gate_up += 2 * width, gradient += width) {
    for_each_vector<T>(width, [&](std::int64_t i, std::int64_t count) {
      const Vector<T> gate = load_up_to(gate_up + i, count);
      const Vector<T> up = load_up_to(gate_up + width + i, count);
      const Vector<T> incoming = load_up_to(gradient + i, count);
      const Vector<T> sigmoid = sigmoid_of<T>(gate);
      const Vector<T> silu = gate * sigmoid;
      const Vector<T> slope = sigmoid + silu * (T{1} - sigmoid);
      store_up_to<T>(gate_up + i, incoming * up * slope, count);
      store_up_to<T>(gate_up + width + i, incoming * silu, count);
      if (leave_activation) store_up_to<T>(gradient + i, silu * up, count);
    });
  }
}

template <typename T>
T row_maximum(const T* row, std::int64_t columns) {
  if (columns < kLanes<T>) {
    T largest = row[0];
    for (std::int64_t i = 1; i < columns; ++i) largest = row[i] > largest ? row[i] : largest;
    return largest;
  }
  // The last vector may overlap the one before: a maximum does not mind.
  Vector<T> even = load(row), odd = load(row + columns - kLanes<T>);
  std::int64_t i = kLanes<T>;
  for (; i + 2 * kLanes<T> <= columns; i += 2 * kLanes<T>) {
    even = larger<T>(even, load(row + i));
    odd = larger<T>(odd, load(row + i + kLanes<T>));
  }
  if (i + kLanes<T> <= columns) even = larger<T>(even, load(row + i));
  return largest_of<T>(larger<T>(even, odd));
}

// Sum over the row of exp(row - maximum), written back when `write`.
template <typename T, bool write>
T exp_row_sum(T* row, std::int64_t columns, T maximum) {
  Vector<T> even = {}, odd = {};
  std::int64_t i = 0;
  for (; i + 2 * kLanes<T> <= columns; i += 2 * kLanes<T>) {
    const Vector<T> first = exp_of(load(row + i) - maximum);
    const Vector<T> second = exp_of(load(row + i + kLanes<T>) - maximum);
    if constexpr (write) {
      store(row + i, first);
      store(row + i + kLanes<T>, second);
    }
    even += first;
    odd += second;
  }
  T sum = sum_of<T>(even + odd);
  for (; i < columns; ++i) {
    const T value = exp_of_one(row[i] - maximum);
    if constexpr (write) row[i] = value;
    sum += value;
  }
  return sum;
}

template <typename T>
void exp_row(T* row, std::int64_t columns, T* maximum, T* sum) {
  *maximum = row_maximum(row, columns);
  *sum = exp_row_sum<T, true>(row, columns, *maximum);
}

template <typename T>
void exp_sum_row(const T* row, std::int64_t columns, T* maximum, T* sum) {
  *maximum = row_maximum(row, columns);
  *sum = exp_row_sum<T, false>(const_cast<T*>(row), columns, *maximum);
}

template <typename T>
void scale_row(T* row, T factor, std::int64_t columns) {
  for_each_vector<T>(columns, [&](std::int64_t i, std::int64_t count) {
    store_up_to<T>(row + i, load_up_to(row + i, count) * factor, count);
  });
}

template <typename T>
void add_row(const T* row, T* sum, std::int64_t columns) {
  for_each_vector<T>(columns, [&](std::int64_t i, std::int64_t count) {
    store_up_to<T>(sum + i, load_up_to(sum + i, count) + load_up_to(row + i, count), count);
  });
}

inline std::int64_t visible_columns(std::int64_t columns, std::int64_t first_visible,
                                    std::int64_t row) {
  return first_visible + row < columns ? first_visible + row : columns;
}

template <typename T>
void softmax_tile(T* scores, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                  std::int64_t first_visible, T* maximum, T* sum, T* out, std::int64_t out_leading,
                  std::int64_t size) {
  for (std::int64_t row = 0; row < rows; ++row, scores += leading, out += out_leading) {
    const std::int64_t visible = visible_columns(columns, first_visible, row);
    if (visible > 0) {
      const T here = row_maximum(scores, visible);
      if (here > maximum[row]) {
        // A row that saw nothing yet has sum 0 and an out that is not read.
        if (sum[row] > T{0}) {
          const T factor = exp_of_one(maximum[row] - here);
          sum[row] *= factor;
          scale_row(out, factor, size);
        }
        maximum[row] = here;
      }
      sum[row] += exp_row_sum<T, true>(scores, visible, maximum[row]);
    }
    for (std::int64_t i = visible > 0 ? visible : 0; i < columns; ++i) scores[i] = 0;
  }
}

template <typename T>
void merge_rows(const T* part, std::int64_t part_leading, const T* part_maximum, const T* part_sum,
                T* out, std::int64_t out_leading, T* maximum, T* sum, std::int64_t rows,
                std::int64_t size) {
  for (std::int64_t row = 0; row < rows; ++row, part += part_leading, out += out_leading) {
    const T top = maximum[row] < part_maximum[row] ? part_maximum[row] : maximum[row];
    const T kept = exp_of_one(maximum[row] - top), added = exp_of_one(part_maximum[row] - top);
    maximum[row] = top;
    sum[row] = sum[row] * kept + part_sum[row] * added;
    for_each_vector<T>(size, [&](std::int64_t i, std::int64_t count) {
      store_up_to<T>(
          out + i, load_up_to(out + i, count) * kept + load_up_to(part + i, count) * added, count);
    });
  }
}

template <typename T>
void softmax_backward_tile(T* scores, T* dp, std::int64_t rows, std::int64_t columns,
                           std::int64_t leading, std::int64_t first_visible, const T* lse,
                           const T* row_term, T scale) {
  for (std::int64_t row = 0; row < rows; ++row, scores += leading, dp += leading) {
    const std::int64_t visible = visible_columns(columns, first_visible, row);
    const T normalizer = lse[row], term = row_term[row];
    for_each_vector<T>(visible > 0 ? visible : 0, [&](std::int64_t i, std::int64_t count) {
      const Vector<T> p = exp_of(load_up_to(scores + i, count) - normalizer);
      store_up_to<T>(scores + i, p, count);
      store_up_to<T>(dp + i, p * (load_up_to(dp + i, count) - term) * scale, count);
    });
    for (std::int64_t i = visible > 0 ? visible : 0; i < columns; ++i) {
      scores[i] = 0;
      dp[i] = 0;
    }
  }
}

template <typename T>
constexpr CpuKernels<T> kLoops = {
    .rms_norm_forward = rms_norm_forward<T>,
    .rms_norm_backward = rms_norm_backward<T>,
    .rotary_forward = rotary_forward<T>,
    .rotary_backward = rotary_backward<T>,
    .swiglu_forward = swiglu_forward<T>,
    .swiglu_backward = swiglu_backward<T>,
    .exp_row = exp_row<T>,
    .exp_sum_row = exp_sum_row<T>,
    .scale_row = scale_row<T>,
    .add_row = add_row<T>,
    .softmax_tile = softmax_tile<T>,
    .merge_rows = merge_rows<T>,
    .softmax_backward_tile = softmax_backward_tile<T>,
    .dot = dot<T>,
};

}  // namespace
}  // namespace sluice
