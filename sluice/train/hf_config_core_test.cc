#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "sluice/train/hf_config.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

ModelConfig parse(const std::string& text) { return parse_model_config(text, "config.json"); }

TEST(HfConfig, KnowsTheDefaultsOfLlama) {
  const ModelConfig config = parse(R"({"model_type": "llama"})");
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.intermediate_size, 11008);
  EXPECT_EQ(config.num_hidden_layers, 32);
  EXPECT_EQ(config.num_attention_heads, 32);
  EXPECT_EQ(config.num_key_value_heads, 32);  // as many as query heads when not given
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(HfConfig, ReadsBothFormsOfTheRotaryBase) {
  EXPECT_EQ(parse(R"({"rope_theta": 500000.0, "rope_scaling": null})").rope_theta, 500000.0);
  EXPECT_EQ(
      parse(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 7000}})").rope_theta,
      7000.0);
}

TEST(HfConfig, RefusesByNameWhatIsNotSupported) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model_type": "qwen2"})", "model_type = qwen2"},
      {R"({"model_type": "mistral"})", "sliding_window"},
      {R"({"sliding_window": 4096})", "sliding_window = 4096"},
      {R"({"attention_bias": true})", "attention_bias"},
      {R"({"mlp_bias": true})", "mlp_bias"},
      {R"({"hidden_act": "gelu"})", "hidden_act"},
      {R"({"head_dim": 64})", "head_dim = 64"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})", "rope_scaling"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2.0}})", "linear"},
  };
  for (const auto& [text, part] : cases) {
    const std::string shown = message_of<InvalidArgument>([&] { parse(text); });
    EXPECT_CONTAINS(shown, part);
  }
  EXPECT_EQ(parse(R"({"model_type": "mistral", "sliding_window": null})").num_key_value_heads, 8);
}

TEST(HfConfig, RefusesDamagedFiles) {
  const char* const cases[] = {"",
                               "{",
                               "[]",
                               R"({"hidden_size": "64"})",
                               R"({"hidden_size": 0})",
                               R"({"hidden_size": 1e30})",
                               R"({"hidden_size": 3.5})",
                               R"({"rms_norm_eps": -1})",
                               R"({"tie_word_embeddings": 1})",
                               R"({"model_type": 3})"};
  for (const char* text : cases) EXPECT_THROW(parse(text), Failure) << text;
}

TEST(HfConfig, WritesWhatItReads) {
  ModelConfig config;
  config.vocab_size = 321;
  config.rope_theta = 12345.0;
  config.tie_word_embeddings = true;
  EXPECT_EQ(parse(model_config_json(config, 64)), config);
  const auto object = nlohmann::json::parse(model_config_json(config, 64));
  EXPECT_EQ(object["architectures"], nlohmann::json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(object["max_position_embeddings"], 64);
  EXPECT_EQ(object["rope_parameters"]["rope_theta"], 12345.0);
}

TEST(WeightShapes, AddUpToTheModelsParameters) {
  for (const bool tied : {false, true}) {
    ModelConfig config;
    config.tie_word_embeddings = tied;
    std::int64_t total = 0;
    for (const WeightShape& weight : weight_shapes(config)) {
      total += std::accumulate(weight.shape.begin(), weight.shape.end(), std::int64_t{1},
                               std::multiplies<>());
    }
    EXPECT_EQ(total, num_parameters(config));
  }
}

}  // namespace
}  // namespace sluice
