#include "sluice/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cmath>

#include "sluice/train/adamw_loop.h"

namespace sluice {
namespace {

/// A parameter with its gradient and a twin that torch's optimizer updates.
struct Twin {
  Parameter ours;
  AdamState state;
  torch::Tensor theirs;
};

Twin make_twin(at::IntArrayRef shape, at::ScalarType dtype, bool decayed) {
  Twin twin;
  twin.ours.spec.decayed = decayed;
  twin.ours.value = torch::randn(shape, dtype);
  twin.ours.gradient = torch::zeros(shape, dtype);
  twin.state = make_adam_state(twin.ours);
  twin.theirs = twin.ours.value.clone().requires_grad_(true);
  return twin;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

/// Largest relative difference of weights to torch::optim::AdamW after `num_steps` steps.
double difference_to_torch(at::ScalarType dtype, bool decayed, int num_steps) {
  torch::manual_seed(3);
  // Lengths around the vector width, and one long enough for the unrolled loop.
  std::vector<Twin> twins;
  for (const std::int64_t size : {1, 3, 16, 17, 1000}) {
    twins.push_back(make_twin({size, 3}, dtype, decayed));
  }
  const AdamOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  std::vector<torch::Tensor> theirs;
  for (const Twin& twin : twins) theirs.push_back(twin.theirs);
  torch::optim::AdamW adamw(theirs, torch::optim::AdamWOptions(1e-2)
                                        .betas({options.beta1, options.beta2})
                                        .eps(options.epsilon)
                                        .weight_decay(decayed ? options.weight_decay : 0.0));
  for (int step = 1; step <= num_steps; ++step) {
    for (Twin& twin : twins) {
      const torch::Tensor gradient = torch::randn_like(twin.ours.value);
      twin.ours.gradient.copy_(gradient);
      twin.theirs.mutable_grad() = gradient * 0.5;
      adamw_step(twin.ours, twin.state, options, 1e-2, 0.5, step);
      EXPECT_EQ(twin.ours.gradient.abs().max().item<double>(), 0.0);
    }
    adamw.step();
  }
  double worst = 0.0;
  for (const Twin& twin : twins) {
    worst = std::max(worst, relative_difference(twin.ours.value, twin.theirs.detach()));
  }
  return worst;
}

TEST(AdamW, AgreesWithTorch) {
  for (const bool decayed : {true, false}) {
    EXPECT_LT(difference_to_torch(at::kDouble, decayed, 20), 1e-13) << decayed;
    EXPECT_LT(difference_to_torch(at::kFloat, decayed, 20), 2e-6) << decayed;
  }
}

TEST(AdamW, DecaysOnlyWhereTheParameterSaysSo) {
  torch::manual_seed(4);
  const AdamOptions options{.weight_decay = 0.5};
  for (const bool decayed : {true, false}) {
    Twin twin = make_twin({40}, at::kDouble, decayed);
    const at::Tensor before = twin.ours.value.clone();
    adamw_step(twin.ours, twin.state, options, 0.1, 1.0, 1);  // the gradient is zero
    const at::Tensor expected = decayed ? before * (1.0 - 0.1 * 0.5) : before;
    EXPECT_LT(relative_difference(twin.ours.value, expected), 1e-15);
  }
}

TEST(AdamW, KeepsAnExactMasterOfBf16Weights) {
  torch::manual_seed(5);
  Parameter parameter;
  parameter.value = torch::randn({64}).to(at::kBFloat16);
  parameter.gradient = torch::zeros({64});
  AdamState state = make_adam_state(parameter);
  EXPECT_EQ(state.exp_avg.scalar_type(), at::kFloat);
  ASSERT_TRUE(state.master.defined());
  const at::Tensor start = state.master.clone();
  // Steps far below bf16's spacing: lost without the master.
  for (int step = 1; step <= 50; ++step) {
    parameter.gradient.fill_(1.0);
    adamw_step(parameter, state, {.weight_decay = 0.0}, 1e-5, 1.0, step);
  }
  EXPECT_NEAR((start - state.master).mean().item<double>(), 50 * 1e-5, 1e-6);
  EXPECT_TRUE(at::equal(parameter.value, state.master.to(at::kBFloat16)));
}

TEST(AdamW, GivesTheSameBitsWhateverTheAlignment) {
  torch::manual_seed(6);
  constexpr std::int64_t kCount = 1037;
  const AdamWScalars scalars{.beta1 = 0.9,
                             .beta2 = 0.95,
                             .gradient_scale = 0.7,
                             .keep = 0.999,
                             .step_size = 1e-3,
                             .inverse_sqrt_correction2 = 3.0,
                             .epsilon = 1e-8};
  const at::Tensor start = torch::randn({4, kCount}).abs();
  at::Tensor expected;
  for (std::int64_t shift = 0; shift < 5; ++shift) {
    const at::Tensor room = torch::zeros({4, kCount + 8});
    const at::Tensor data = room.narrow(1, shift, kCount);
    data.copy_(start);
    adamw_loop(data[0].data_ptr<float>(), data[1].data_ptr<float>(), data[2].data_ptr<float>(),
               data[3].data_ptr<float>(), kCount, scalars);
    if (shift == 0) expected = data.clone();
    EXPECT_TRUE(at::equal(data, expected)) << shift;
  }
}

TEST(SumSquares, AgreesWithTorchAndIsAddedUpInDouble) {
  torch::manual_seed(7);
  for (const std::int64_t count : {0, 1, 15, 16, 17, 5000}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor gradient = torch::randn({count}, dtype);
      const double expected = gradient.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(sum_squares(gradient), expected, 1e-12 * (1.0 + expected)) << count;
    }
  }
  // In fp32 the ones would vanish beside the large square.
  at::Tensor gradient = torch::ones({1 << 16});
  gradient[0] = 1e5;
  EXPECT_DOUBLE_EQ(sum_squares(gradient), 1e10 + 65535.0);
}

TEST(LearningRate, WarmsUpThenFollowsACosine) {
  const auto rate = [](std::int64_t step) { return learning_rate_at(step, 110, 10, 1.0, 0.1); };
  EXPECT_DOUBLE_EQ(rate(1), 0.1);
  EXPECT_DOUBLE_EQ(rate(5), 0.5);
  EXPECT_DOUBLE_EQ(rate(10), 1.0);
  EXPECT_NEAR(rate(35), 0.1 + 0.9 * (0.5 + 0.25 * std::sqrt(2.0)), 1e-12);
  EXPECT_NEAR(rate(60), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(rate(110), 0.1);
  EXPECT_DOUBLE_EQ(rate(500), 0.1);
  for (std::int64_t step = 11; step < 110; ++step) EXPECT_GT(rate(step), rate(step + 1));
}

TEST(LearningRate, WorksWithoutWarmUpAndWithNothingElse) {
  EXPECT_NEAR(learning_rate_at(1, 1000000, 0, 2.0, 0.0), 2.0, 1e-9);
  EXPECT_DOUBLE_EQ(learning_rate_at(3, 5, 10, 1.0, 0.1), 0.3);
  EXPECT_DOUBLE_EQ(learning_rate_at(11, 5, 10, 1.0, 0.1), 0.1);
}

}  // namespace
}  // namespace sluice
