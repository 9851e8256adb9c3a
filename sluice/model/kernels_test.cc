// The fused loops of every instruction set against the plain tensor formulas.
#include "sluice/model/kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "sluice/model/kernels_cpu.h"
#include "sluice/model/rotary.h"

namespace sluice {
namespace {

template <typename T>
class Loops : public testing::Test {
 protected:
  static constexpr auto kType = c10::CppTypeToScalarType<T>::value;
  // What a sum of a few hundred terms may lose: half an ulp for each.
  static constexpr double kTolerance = std::is_same_v<T, float> ? 3e-6 : 3e-14;

  static at::Tensor random(at::IntArrayRef shape) {
    return at::randn(shape, at::TensorOptions().dtype(kType));
  }
  static void expect_close(const at::Tensor& value, const at::Tensor& expected, const char* what,
                           double tolerance = kTolerance) {
    const at::Tensor wide = expected.to(at::kDouble);
    const double error = (value.to(at::kDouble) - wide).abs().max().item<double>();
    EXPECT_LE(error, tolerance * std::max(1.0, wide.abs().max().item<double>())) << what;
  }
  // Every table this machine can run.
  template <typename Check>
  static void with_each_table(Check check) {
    for (int i = 0; i < num_cpu_kernel_tables(); ++i) {
      const NamedCpuKernels<T> table = cpu_kernel_table<T>(i);
      SCOPED_TRACE(table.name);
      check(*table.kernels);
    }
  }
};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Loops, Types);

template <typename T>
T* data(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<T>();
}

TYPED_TEST(Loops, OfTheNormMatchTheFormula) {
  using T = TypeParam;
  for (const std::int64_t columns : {1, 5, 8, 30, 512}) {
    for (const bool residual : {false, true}) {
      for (const bool leave_y : {false, true}) {
        const std::int64_t rows = 150;
        const at::Tensor x = this->random({rows, columns}), weight = this->random({columns});
        const at::Tensor dy = this->random({rows, columns});
        const at::Tensor above = residual ? this->random({rows, columns}) : at::Tensor();
        at::Tensor y = at::empty_like(x), reciprocal = at::empty_like(x.select(1, 0).contiguous());
        naive::rms_norm_forward(x, weight, 1e-5, y, reciprocal);
        at::Tensor dx = at::empty_like(x), weight_gradient = at::zeros_like(weight) + 1.0;
        at::Tensor dy_or_y = dy.clone();
        naive::rms_norm_backward(x, weight, reciprocal, above, dy_or_y, leave_y, dx,
                                 weight_gradient);
        this->with_each_table([&](const CpuKernels<T>& loops) {
          at::Tensor got_y = at::empty_like(y), got_reciprocal = at::empty_like(reciprocal);
          loops.rms_norm_forward(data<T>(x), data<T>(weight), 1e-5, data<T>(got_y),
                                 data<T>(got_reciprocal), rows, columns);
          this->expect_close(got_y, y, "y");
          this->expect_close(got_reciprocal, reciprocal, "reciprocal");
          at::Tensor got_dx = at::empty_like(x), got_gradient = at::zeros_like(weight) + 1.0;
          at::Tensor got_dy = dy.clone();
          std::vector<T> scratch(static_cast<std::size_t>(2 * columns));
          loops.rms_norm_backward(data<T>(x), data<T>(weight), data<T>(reciprocal),
                                  residual ? data<T>(above) : nullptr, data<T>(got_dy), leave_y,
                                  data<T>(got_dx), data<T>(got_gradient), scratch.data(), rows,
                                  columns);
          // Differences of large terms where a row is a single small number.
          this->expect_close(got_dx, dx, "dx", 10 * this->kTolerance);
          this->expect_close(got_gradient, weight_gradient, "weight gradient");
          this->expect_close(got_dy, leave_y ? y : dy, "what dy became");
        });
      }
    }
  }
}

TYPED_TEST(Loops, OfRotaryMatchTheFormulaAndTurnBack) {
  using T = TypeParam;
  for (const std::int64_t size : {2, 10, 16, 64}) {
    const RotaryShape shape{.batch = 2, .tokens = 5, .heads = 4, .kv_heads = 2, .size = size};
    const std::int64_t first = 3, rows = shape.batch * shape.tokens;
    ModelConfig config{.hidden_size = 4 * size,
                       .num_attention_heads = 4,
                       .dtype = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64};
    RotaryTable table(config, at::kCPU);
    const RotaryAngles& angles = table.up_to(first + shape.tokens);
    const at::Tensor qkv = this->random({rows, 8 * size});
    at::Tensor q = this->random({2, 5, 4, size}), k = this->random({2, 2, 5, size});
    at::Tensor v = this->random({2, 2, 5, size});
    naive::rotary_forward(qkv, angles, first, q, k, v);
    const T* cosines = data<T>(angles.cosines_PS) + first * size / 2;
    const T* sines = data<T>(angles.sines_PS) + first * size / 2;
    this->with_each_table([&](const CpuKernels<T>& loops) {
      at::Tensor got_q = at::empty_like(q), got_k = at::empty_like(k), got_v = at::empty_like(v);
      loops.rotary_forward(data<T>(qkv), cosines, sines, shape, data<T>(got_q), data<T>(got_k),
                           data<T>(got_v));
      this->expect_close(got_q, q, "q");
      this->expect_close(got_k, k, "k");
      this->expect_close(got_v, v, "v");
      // The transpose of a rotation is its inverse, so the way back gives what went in.
      at::Tensor back = at::empty_like(qkv);
      const HeadStrides strides{k.stride(0), k.stride(1), k.stride(2)};
      loops.rotary_backward(data<T>(got_q), data<T>(got_k), strides, data<T>(got_v), strides,
                            cosines, sines, shape, data<T>(back));
      this->expect_close(back, qkv, "back");
    });
    at::Tensor back = at::empty_like(qkv);
    naive::rotary_backward(q, k, v, angles, first, back);
    this->expect_close(back, qkv, "back");
  }
}

TYPED_TEST(Loops, OfSwigluMatchTheFormula) {
  using T = TypeParam;
  for (const std::int64_t width : {1, 7, 16, 88}) {
    const std::int64_t rows = 9;
    const at::Tensor gate_up = this->random({rows, 2 * width}) * 4.0;
    const at::Tensor gradient = this->random({rows, width});
    at::Tensor activation = at::empty_like(gradient);
    naive::swiglu_forward(gate_up, activation);
    for (const bool leave : {false, true}) {
      at::Tensor expected_gate_up = gate_up.clone(), expected = gradient.clone();
      naive::swiglu_backward(expected_gate_up, expected, leave);
      this->with_each_table([&](const CpuKernels<T>& loops) {
        at::Tensor got = at::empty_like(activation);
        loops.swiglu_forward(data<T>(gate_up), data<T>(got), rows, width);
        this->expect_close(got, activation, "activation");
        at::Tensor got_gate_up = gate_up.clone(), got_gradient = gradient.clone();
        loops.swiglu_backward(data<T>(got_gate_up), data<T>(got_gradient), leave, rows, width);
        this->expect_close(got_gate_up, expected_gate_up, "gradient of gate and up");
        this->expect_close(got_gradient, expected, "what the gradient became");
      });
    }
  }
}

TYPED_TEST(Loops, OfSwigluStandExtremeGates) {
  using T = TypeParam;
  this->with_each_table([](const CpuKernels<T>& loops) {
    for (const T gate : {T{-1e30F}, T{-800}, T{-90}, T{0}, T{90}, T{800}, T{1e30F}}) {
      const T gate_up[] = {gate, T{2}};
      T activation = 0;
      loops.swiglu_forward(gate_up, &activation, 1, 1);
      const T expected = gate > 0 ? 2 * gate : T{0};
      EXPECT_NEAR(activation, expected, 1e-6 * std::abs(expected) + 1e-6) << gate;
    }
  });
}

TYPED_TEST(Loops, ComputeExponentialsToRounding) {
  using T = TypeParam;
  // In units in the last place: fp32 within 2.5; fp64 within 4, that is 1e-15 relative.
  const double bound = std::is_same_v<T, float> ? 2.5 : 4.0;
  this->with_each_table([&](const CpuKernels<T>& loops) {
    double worst = 0.0;
    std::vector<T> row;
    for (double x = 0.0; x > (std::is_same_v<T, float> ? -87.0 : -708.0); x -= 0.00713) {
      row.push_back(static_cast<T>(x));
    }
    std::vector<T> got = row;
    T maximum = 1, sum = 0;
    loops.exp_row(got.data(), static_cast<std::int64_t>(got.size()), &maximum, &sum);
    EXPECT_EQ(maximum, T{0});
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double exact = std::exp(static_cast<double>(row[i]));
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - exact) / exact);
    }
    EXPECT_LT(worst, bound * static_cast<double>(std::numeric_limits<T>::epsilon()) / 2);
  });
}

TYPED_TEST(Loops, OfRowSumsAgreeForEveryLength) {
  using T = TypeParam;
  for (std::int64_t columns = 1; columns < 70; ++columns) {
    const at::Tensor row = this->random({columns}) * 5.0;
    const double maximum = row.max().template item<double>();
    const double sum = (row.to(at::kDouble) - maximum).exp().sum().template item<double>();
    this->with_each_table([&](const CpuKernels<T>& loops) {
      T got_maximum = 0, got_sum = 0, again_maximum = 0, again_sum = 0;
      loops.exp_sum_row(data<T>(row), columns, &got_maximum, &got_sum);
      EXPECT_EQ(static_cast<double>(got_maximum), maximum);
      EXPECT_NEAR(got_sum / sum, 1.0, this->kTolerance);
      at::Tensor copy = row.clone();
      loops.exp_row(data<T>(copy), columns, &again_maximum, &again_sum);
      EXPECT_EQ(again_sum, got_sum);
      EXPECT_NEAR(loops.dot(data<T>(row), data<T>(row), columns) /
                      row.to(at::kDouble).square().sum().template item<double>(),
                  1.0, this->kTolerance);
    });
  }
}

TYPED_TEST(Loops, OfCrossEntropyMatchTheFormula) {
  for (const std::int64_t vocab : {1, 3, 40, 333}) {
    for (const double z_loss : {0.0, 0.01}) {
      for (const bool overwrite : {false, true}) {
        const LossOptions options{.scale = 0.25, .z_loss = z_loss};
        const at::Tensor logits = this->random({12, vocab}) * 6.0;
        at::Tensor targets = at::randint(vocab, {12}, at::TensorOptions().dtype(at::kLong));
        targets[3] = options.ignore_index;
        at::Tensor expected = logits.clone(), got = logits.clone();
        const LossSum a = naive::cross_entropy_tile(expected, targets, options, overwrite);
        const LossSum b = cross_entropy_tile(got, targets, options, overwrite);
        const double tolerance = 10 * this->kTolerance;
        EXPECT_NEAR(a.cross_entropy, b.cross_entropy, tolerance * (1 + a.cross_entropy));
        EXPECT_NEAR(a.z_loss, b.z_loss, tolerance * (1 + a.z_loss));
        EXPECT_EQ(a.num_targets, 11);
        EXPECT_EQ(b.num_targets, 11);
        this->expect_close(got, expected, "logits or their gradient");
      }
    }
  }
}

TYPED_TEST(Loops, OfTheEmbeddingAddRepeatedTokens) {
  const at::Tensor dx = this->random({7, 10});
  const at::Tensor tokens = at::randint(3, {7}, at::TensorOptions().dtype(at::kLong));
  at::Tensor expected = this->random({3, 10});
  at::Tensor got = expected.clone();
  naive::embedding_backward(tokens, dx, expected);
  embedding_backward(tokens, dx, got);
  this->expect_close(got, expected, "embedding gradient");
}

TYPED_TEST(Loops, DoNotDependOnTheThread) {
  const at::Tensor gate_up = this->random({33, 2 * 77});
  at::Tensor here = at::empty({33, 77}, gate_up.options()), there = at::empty_like(here);
  swiglu_forward(gate_up, here);
  std::thread([&] { swiglu_forward(gate_up, there); }).join();
  EXPECT_TRUE(here.equal(there));
}

TEST(RotaryTable, KeepsItsAnglesWhenItGrows) {
  RotaryTable table({.dtype = DType::kFloat64}, at::kCPU);
  const at::Tensor before = table.up_to(5).cosines_PS.clone();
  const at::Tensor after = table.up_to(1000).cosines_PS;
  EXPECT_GE(after.size(0), 1000);
  EXPECT_TRUE(after.narrow(0, 0, before.size(0)).equal(before));
  EXPECT_NEAR(after[7][0].item<double>(), std::cos(7.0), 1e-15);
}

}  // namespace
}  // namespace sluice
