#include "sluice/model/parameter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sluice/model/stage.h"

namespace sluice {
namespace {

at::Tensor initialized(const ParameterSpec& spec, std::uint64_t seed, at::ScalarType type) {
  at::Tensor value = at::empty(spec.shape, at::TensorOptions().dtype(type));
  initialize(spec, seed, value);
  return value;
}

const ParameterSpec kSpec = {.name = "model.layers.3.mlp.up_proj.weight", .shape = {301, 433}};

TEST(Initialisation, IsNormalWithTheGivenDeviation) {
  const at::Tensor value = initialized(kSpec, 1, at::kDouble) / kSpec.init_std;
  const auto n = static_cast<double>(value.numel());
  const double mean = value.mean().item<double>();
  const double variance = value.square().mean().item<double>();
  const double fourth = value.pow(4).mean().item<double>();
  EXPECT_LT(std::abs(mean), 4.0 / std::sqrt(n));
  EXPECT_LT(std::abs(variance - 1.0), 4.0 * std::sqrt(2.0 / n));
  EXPECT_LT(std::abs(fourth - 3.0), 4.0 * std::sqrt(96.0 / n));
  // Neighbours share a pair of uniforms or a counter; they must not be related.
  const at::Tensor flat = value.view(-1);
  for (const std::int64_t lag : {1, 2, 433}) {
    const at::Tensor product =
        flat.narrow(0, 0, flat.numel() - lag) * flat.narrow(0, lag, flat.numel() - lag);
    EXPECT_LT(std::abs(product.mean().item<double>()), 4.0 / std::sqrt(n)) << lag;
  }
}

TEST(Initialisation, DependsOnSeedAndNameAlone) {
  const at::Tensor value = initialized(kSpec, 1, at::kDouble);
  EXPECT_TRUE(value.equal(initialized(kSpec, 1, at::kDouble)));
  EXPECT_FALSE(value.equal(initialized(kSpec, 2, at::kDouble)));
  ParameterSpec other = kSpec;
  other.name = "model.layers.2.mlp.up_proj.weight";
  EXPECT_FALSE(value.equal(initialized(other, 1, at::kDouble)));
}

TEST(Initialisation, GivesEveryTypeTheSameValuesUpToRounding) {
  const at::Tensor value = initialized(kSpec, 1, at::kDouble);
  EXPECT_TRUE(initialized(kSpec, 1, at::kFloat).equal(value.to(at::kFloat)));
  EXPECT_TRUE(initialized(kSpec, 1, at::kBFloat16).equal(value.to(at::kBFloat16)));
}

TEST(Initialisation, KeepsItsValues) {
  // Written down once: a model started by an older build must be the same model.
  const at::Tensor value =
      initialized({.name = "a", .shape = {2, 2}, .init_std = 1.0}, 0, at::kDouble);
  const double expected[] = {0.015416006449745102, -0.38766503478348097, 0.6683796511939746,
                             0.8354125984897678};
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(value.view(-1)[i].item<double>(), expected[i], 1e-12);
  }
}

TEST(Initialisation, OfATiedParameterFollowsTheNameItIsTiedTo) {
  const ParameterSpec embedding = {.name = "model.embed_tokens.weight", .shape = {10, 4}};
  const ParameterSpec head = {
      .name = "lm_head.weight", .shape = {10, 4}, .tied_to = "model.embed_tokens.weight"};
  EXPECT_TRUE(initialized(embedding, 5, at::kFloat).equal(initialized(head, 5, at::kFloat)));
}

TEST(StageParameters, HaveTheNamesShapesAndOrderOfTheHuggingFaceModel) {
  const ModelConfig config = {.vocab_size = 10,
                              .hidden_size = 8,
                              .intermediate_size = 12,
                              .num_hidden_layers = 3,
                              .num_attention_heads = 4,
                              .num_key_value_heads = 2};
  const Stage stage(config, {2, 1, true, true}, at::kCPU, 0);
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> expected = {
      {"model.embed_tokens.weight", {10, 8}},
      {"model.layers.2.input_layernorm.weight", {8}},
      {"model.layers.2.self_attn.q_proj.weight", {8, 8}},
      {"model.layers.2.self_attn.k_proj.weight", {4, 8}},
      {"model.layers.2.self_attn.v_proj.weight", {4, 8}},
      {"model.layers.2.self_attn.o_proj.weight", {8, 8}},
      {"model.layers.2.post_attention_layernorm.weight", {8}},
      {"model.layers.2.mlp.gate_proj.weight", {12, 8}},
      {"model.layers.2.mlp.up_proj.weight", {12, 8}},
      {"model.layers.2.mlp.down_proj.weight", {8, 12}},
      {"model.norm.weight", {8}},
      {"lm_head.weight", {10, 8}}};
  ASSERT_EQ(stage.parameters().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Parameter& parameter = stage.parameters()[i];
    EXPECT_EQ(parameter.spec.name, expected[i].first);
    EXPECT_EQ(parameter.spec.shape, expected[i].second);
    EXPECT_EQ(parameter.value.sizes().vec(), expected[i].second);
    EXPECT_EQ(parameter.gradient.sizes().vec(), expected[i].second);
    EXPECT_TRUE(parameter.value.is_contiguous());
    EXPECT_EQ(parameter.spec.decayed, expected[i].second.size() == 2);
    at::Tensor alone = at::empty_like(parameter.value);
    initialize(parameter.spec, 0, alone);
    EXPECT_TRUE(parameter.value.equal(alone)) << "stacking must not change values";
  }
}

TEST(StageParameters, AreTheSameInEveryLayout) {
  ModelConfig config;
  config.num_hidden_layers = 3;
  const Stage whole(config, {0, 3, true, true}, at::kCPU, 9);
  const Stage middle(config, {1, 1, false, false}, at::kCPU, 9);
  for (const Parameter& part : middle.parameters()) {
    bool found = false;
    for (const Parameter& parameter : whole.parameters()) {
      if (parameter.spec.name != part.spec.name) continue;
      found = true;
      EXPECT_TRUE(parameter.value.equal(part.value)) << part.spec.name;
    }
    EXPECT_TRUE(found) << part.spec.name;
  }
}

}  // namespace
}  // namespace sluice
