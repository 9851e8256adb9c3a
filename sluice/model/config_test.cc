#include "sluice/model/config.h"

#include <gtest/gtest.h>

#include <limits>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

std::string refusal(const ModelConfig& config) {
  try {
    check_config(config);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Config, AcceptsItsDefaults) { EXPECT_EQ(refusal({}), "accepted"); }

TEST(Config, NamesTheKeyTheValueAndTheRule) {
  const auto expect = [](const ModelConfig& config, const char* message) {
    EXPECT_EQ(refusal(config), message);
  };
  expect({.vocab_size = 0}, "model.vocab_size is 0: it must be between 1 and 2147483648");
  expect({.hidden_size = -4}, "model.hidden_size is -4: it must be between 1 and 2147483648");
  expect({.hidden_size = 130},
         "model.num_attention_heads is 4: it must divide model.hidden_size, which is 130");
  expect({.num_key_value_heads = 3},
         "model.num_key_value_heads is 3: it must divide model.num_attention_heads, which is 4");
  expect({.hidden_size = 12},
         "model.num_attention_heads is 4: heads of 3 (hidden_size / num_attention_heads) are odd, "
         "and rotary embedding needs an even head size");
  expect({.rms_norm_eps = 0.0}, "model.rms_norm_eps is 0: it must be a finite number above 0");
  expect({.rope_theta = std::numeric_limits<double>::quiet_NaN()},
         "model.rope_theta is nan: it must be a finite number above 0");
}

// Facts of published models: parameters as their model cards and configurations give them.
TEST(Config, CountsTheParametersOfPublishedModels) {
  const ModelConfig llama2_7b = {.vocab_size = 32000,
                                 .hidden_size = 4096,
                                 .intermediate_size = 11008,
                                 .num_hidden_layers = 32,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 32};
  EXPECT_EQ(num_parameters(llama2_7b), 6'738'415'616);
  const ModelConfig llama3_8b = {.vocab_size = 128256,
                                 .hidden_size = 4096,
                                 .intermediate_size = 14336,
                                 .num_hidden_layers = 32,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 8};
  EXPECT_EQ(num_parameters(llama3_8b), 8'030'261'248);
  const ModelConfig tiny_llama = {.vocab_size = 32000,
                                  .hidden_size = 2048,
                                  .intermediate_size = 5632,
                                  .num_hidden_layers = 22,
                                  .num_attention_heads = 32,
                                  .num_key_value_heads = 4};
  EXPECT_EQ(num_parameters(tiny_llama), 1'100'048'384);
}

TEST(Config, CountsATiedMatrixOnce) {
  ModelConfig config;
  const std::int64_t untied = num_parameters(config);
  config.tie_word_embeddings = true;
  EXPECT_EQ(untied - num_parameters(config), config.vocab_size * config.hidden_size);
}

TEST(Config, CountsSixFlopsPerWeightAndHalfTheContext) {
  const ModelConfig config = {.vocab_size = 100,
                              .hidden_size = 8,
                              .intermediate_size = 16,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 2,
                              .num_key_value_heads = 1};
  // q and o 64 each, k and v 32 each, three of 128; the output layer 800; attention per layer
  // 2 products * 2 FLOPs * 8 * 10 / 2 keys * 3 passes.
  const double weights = 2 * (2 * 64 + 2 * 32 + 3 * 128) + 800;
  EXPECT_DOUBLE_EQ(training_flops_per_token(config, 10), 6 * weights + 2 * 480);
}

}  // namespace
}  // namespace sluice
