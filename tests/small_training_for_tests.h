// small_training_for_tests.h - a model of a few kilobytes, some steps of it, and what must be
// equal: what the parity tests have in common.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sluice/model/config.h"
#include "sluice/model/reference.h"
#include "sluice/runtime/engine.h"
#include "sluice/train/rank_model.h"

namespace sluice {

/// 23 rows of vocabulary, hidden size 16, 4 heads of which 2 are key-value heads.
inline ModelConfig small_config(int num_layers, bool tied, DType dtype = DType::kFloat32) {
  ModelConfig config;
  config.vocab_size = 23;
  config.hidden_size = 16;
  config.intermediate_size = 20;
  config.num_hidden_layers = num_layers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.3;  // large enough that every layer matters in the loss
  config.dtype = dtype;
  return config;
}

/// Trains `num_steps` on one batch. Returns of every step the cross entropy of all ranks and the
/// gradient norm.
inline std::vector<double> train_steps(Engine& engine, RankModel& model, Transport& transport,
                                       const StepBatch& batch, int num_steps) {
  std::vector<double> numbers;
  for (int step = 1; step <= num_steps; ++step) {
    engine.run(batch, [&](const std::vector<LossSum>& losses) {
      double sum = 0.0;
      for (const LossSum& loss : losses) sum += loss.cross_entropy;
      const UpdateResult update = model.update(transport, {}, 1e-2, 0.5, step, {sum});
      double total = 0.0;
      for (const auto& share : update.shared) total += share[0];
      numbers.push_back(total);
      numbers.push_back(update.gradient_norm);
    });
  }
  return numbers;
}

inline double relative_error(const at::Tensor& got, const at::Tensor& wanted) {
  const double scale = wanted.abs().max().item<double>();
  return (got - wanted).abs().max().item<double>() / std::max(scale, 1e-30);
}

inline void expect_same_bits(const NamedTensors& got, const NamedTensors& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(at::equal(got.at(name), tensor))
        << name << " differs by " << relative_error(got.at(name), tensor);
  }
}

}  // namespace sluice
