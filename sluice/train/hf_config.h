// hf_config.h - config.json and tensor names of Hugging Face's Llama family. Free of torch. Read
// next: safetensors.h, checkpoint.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sluice/model/config.h"

namespace sluice {

/// Reads `folder`/config.json: model types llama and mistral, without biases, sliding window,
/// scaled rotary embedding or a head size of its own. dtype and recompute stay at their defaults:
/// weights are converted when they are read. Throws: InvalidArgument when there is none, Failure
/// when it is damaged, InvalidArgument naming the key of a feature that is not supported.
ModelConfig read_model_config(const std::filesystem::path& folder);

/// The same from the text itself; `origin` names it in errors.
ModelConfig parse_model_config(const std::string& json, const std::string& origin);

/// The text of a config.json that transformers loads as a LlamaForCausalLM.
std::string model_config_json(const ModelConfig& config, std::int64_t max_position_embeddings);

/// Name and shape of a weight.
struct WeightShape {
  std::string name;
  std::vector<std::int64_t> shape;

  friend bool operator==(const WeightShape&, const WeightShape&) = default;
};

/// Every weight of the model, once: embedding, layers ascending, final norm and, unless it is tied
/// to the embedding, lm_head.weight. A linear weight is [out, in].
std::vector<WeightShape> weight_shapes(const ModelConfig& config);

/// Name of the embedding, and of the output layer that tied models do not store.
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kHeadName = "lm_head.weight";

}  // namespace sluice
