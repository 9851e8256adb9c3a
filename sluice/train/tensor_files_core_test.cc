#include <gtest/gtest.h>

#include <numeric>

#include "sluice/train/tensor_files.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

ModelConfig small_model(bool tied) {
  ModelConfig config;
  config.vocab_size = 5;
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.tie_word_embeddings = tied;
  return config;
}

NamedBytes filled(const std::string& name, const std::vector<std::int64_t>& shape, char value,
                  ElementType type = ElementType::kF32) {
  std::int64_t count = num_bytes_of(type);
  for (const std::int64_t size : shape) count *= size;
  const auto owner =
      std::make_shared<const std::vector<char>>(static_cast<std::size_t>(count), value);
  return {.name = name,
          .type = type,
          .shape = shape,
          .bytes = std::as_bytes(std::span(*owner)),
          .owner = owner};
}

std::vector<NamedBytes> weights_of(const ModelConfig& config) {
  std::vector<NamedBytes> tensors;
  for (const WeightShape& weight : weight_shapes(config)) {
    tensors.push_back(filled(weight.name, weight.shape, 1));
  }
  return tensors;
}

void write(const std::filesystem::path& path, const std::vector<NamedBytes>& tensors) {
  FileWriter writer(path);
  write_safetensors(writer, tensors);
  writer.close();
}

TEST(TensorFiles, JoinsThePartsOfAnIndex) {
  const TestFolder folder;
  write(folder.path() / "model-00001-of-00002.safetensors", {filled("a", {2}, 1)});
  write(folder.path() / "model-00002-of-00002.safetensors", {filled("b", {3}, 2)});
  folder.write("model.safetensors.index.json", R"({"metadata": {"total_size": 20}, "weight_map": {
    "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  const TensorFiles files = TensorFiles::open(folder.path(), "model");
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(files.at("b").bytes[0], std::byte{2});
  EXPECT_THROW(files.at("c"), Failure);
}

TEST(TensorFiles, RefusesAnIndexThatDisagreesWithItsParts) {
  const TestFolder folder;
  write(folder.path() / "one.safetensors", {filled("a", {2}, 1)});
  write(folder.path() / "two.safetensors", {filled("a", {2}, 1), filled("b", {1}, 1)});
  const auto refusal = [&](const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    return message_of<Failure>([&] { TensorFiles::open(folder.path(), "model"); });
  };
  EXPECT_CONTAINS(refusal("{}"), "no weight_map");
  EXPECT_CONTAINS(refusal("no"), "no weight_map");
  EXPECT_CONTAINS(refusal(R"({"weight_map": {"a": 3}})"), "no weight_map");
  EXPECT_CONTAINS(refusal(R"({"weight_map": {"b": "one.safetensors"}})"), "b is not in one");
  EXPECT_CONTAINS(refusal(R"({"weight_map": {"a": "../one.safetensors"}})"), "plain file name");
  EXPECT_CONTAINS(refusal(R"({"weight_map": {"a": "none.safetensors"}})"), "No such file");
  EXPECT_CONTAINS(refusal(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})"),
                  "a is in two files");
}

TEST(OpenWeights, DemandsExactlyTheModelsTensors) {
  const ModelConfig config = small_model(false);
  const TestFolder folder;
  const std::filesystem::path path = folder.path() / "model.safetensors";
  const auto refusal = [&](std::vector<NamedBytes> tensors) {
    write(path, tensors);
    return message_of<Failure>([&] { open_weights(folder.path(), config); });
  };
  EXPECT_CONTAINS(message_of<Failure>([&] { open_weights(folder.path(), config); }),
                  "has neither model.safetensors nor");
  std::vector<NamedBytes> tensors = weights_of(config);
  tensors.pop_back();
  EXPECT_CONTAINS(refusal(tensors), "lm_head.weight is missing");
  tensors = weights_of(config);
  tensors.push_back(filled("model.layers.1.input_layernorm.weight", {4}, 1));
  EXPECT_CONTAINS(refusal(tensors), "model.layers.1.input_layernorm.weight does not belong");
  tensors = weights_of(config);
  tensors[0] = filled(tensors[0].name, {4, 5}, 1);
  EXPECT_CONTAINS(refusal(tensors), "has shape [4, 5], the model needs [5, 4]");
  tensors = weights_of(config);
  tensors[0] = filled(tensors[0].name, {5, 4}, 1, ElementType::kI32);
  EXPECT_CONTAINS(refusal(tensors), "is I32");

  tensors = weights_of(config);
  tensors.push_back(filled("model.layers.0.self_attn.rotary_emb.inv_freq", {1}, 1));
  write(path, tensors);
  EXPECT_NO_THROW(open_weights(folder.path(), config));
}

TEST(OpenWeights, AcceptsATiedHeadOnlyWhenItEqualsTheEmbedding) {
  const ModelConfig config = small_model(true);
  const TestFolder folder;
  const std::filesystem::path path = folder.path() / "model.safetensors";
  write(path, weights_of(config));
  EXPECT_NO_THROW(open_weights(folder.path(), config));
  std::vector<NamedBytes> tensors = weights_of(config);
  tensors.push_back(filled(kHeadName, {5, 4}, 1));
  write(path, tensors);
  EXPECT_NO_THROW(open_weights(folder.path(), config));
  tensors.back() = filled(kHeadName, {5, 4}, 2);
  write(path, tensors);
  EXPECT_CONTAINS(message_of<Failure>([&] { open_weights(folder.path(), config); }),
                  "differs from model.embed_tokens.weight");
}

}  // namespace
}  // namespace sluice
