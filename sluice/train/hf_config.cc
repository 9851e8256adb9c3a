#include "sluice/train/hf_config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "sluice/common/errors.h"
#include "sluice/train/config_keys.h"
#include "sluice/train/files.h"

namespace sluice {
namespace {

using nlohmann::json;

/// A config.json with the origin for its errors.
class JsonConfig {
 public:
  JsonConfig(const json& object, const std::string& origin) : object_(object), origin_(origin) {}

  /// Not there and null both mean that the default holds.
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  std::int64_t integer(const char* key, std::int64_t fallback) const {
    if (!has(key)) return fallback;
    const json& value = object_.at(key);
    // Sizes of a model fit an int; anything else is damage.
    if (!value.is_number_integer() || value.get<double>() < 1.0 ||
        value.get<double>() > std::numeric_limits<int>::max()) {
      damaged(key, "a whole number of at least 1");
    }
    return value.get<std::int64_t>();
  }

  double real(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const json& value = object_.at(key);
    if (!value.is_number() || !(value.get<double>() > 0.0)) damaged(key, "a number above 0");
    return value.get<double>();
  }

  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_boolean()) damaged(key, "true or false");
    return object_.at(key).get<bool>();
  }

  std::string text(const char* key, const char* fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_string()) damaged(key, "text");
    return object_.at(key).get<std::string>();
  }

  [[noreturn]] void unsupported(const char* key, const std::string& value) const {
    throw InvalidArgument(
        fmt::format("{}: {} = {} is not supported; sluice trains Llama and Mistral models without "
                    "biases, sliding windows and scaled rotary embeddings",
                    origin_, key, value));
  }

  std::string shown(const char* key) const {
    std::string value =
        object_.at(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return value.size() > 80 ? value.substr(0, 80) + "..." : value;
  }

  const json& at(const char* key) const { return object_.at(key); }
  const std::string& origin() const { return origin_; }

 private:
  [[noreturn]] void damaged(const char* key, const char* rule) const {
    throw Failure(fmt::format("{}: {} = {} must be {}", origin_, key, shown(key), rule));
  }

  const json& object_;
  const std::string& origin_;
};

/// Base of the rotary embedding, from `rope_parameters` (transformers 5) or `rope_theta`.
double rotary_base(const JsonConfig& config) {
  double theta = config.real("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(key)) continue;
    if (!config.at(key).is_object()) config.unsupported(key, config.shown(key));
    const JsonConfig rope(config.at(key), config.origin());
    const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
    if (type != "default") config.unsupported(key, config.shown(key));
    theta = rope.real("rope_theta", theta);
  }
  return theta;
}

void refuse_unsupported(const JsonConfig& config, const std::string& type) {
  if (type != "llama" && type != "mistral") config.unsupported("model_type", type);
  if (config.text("hidden_act", "silu") != "silu") {
    config.unsupported("hidden_act", config.shown("hidden_act"));
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (config.boolean(key, false)) config.unsupported(key, "true");
  }
  // A Mistral config without the key means a window of 4096; one with null means none.
  if (config.has("sliding_window")) {
    config.unsupported("sliding_window", config.shown("sliding_window"));
  }
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& origin) {
  json object;
  try {
    object = json::parse(text);
  } catch (const json::exception&) {
    throw Failure(fmt::format("{} is not JSON; copy the model's folder again", origin));
  }
  if (!object.is_object()) throw Failure(fmt::format("{} is not a JSON object", origin));
  const JsonConfig source(object, origin);
  const std::string type = source.text("model_type", "llama");
  refuse_unsupported(source, type);
  if (type == "mistral" && !object.contains("sliding_window")) {
    source.unsupported("sliding_window", "4096 (the default of Mistral)");
  }

  ModelConfig config;
  config.vocab_size = source.integer("vocab_size", 32000);
  config.hidden_size = source.integer("hidden_size", 4096);
  config.intermediate_size = source.integer("intermediate_size", type == "llama" ? 11008 : 14336);
  config.num_hidden_layers = source.integer("num_hidden_layers", 32);
  config.num_attention_heads = source.integer("num_attention_heads", 32);
  config.num_key_value_heads =
      source.integer("num_key_value_heads", type == "llama" ? config.num_attention_heads : 8);
  config.rope_theta = rotary_base(source);
  config.rms_norm_eps = source.real("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = source.boolean("tie_word_embeddings", false);
  check_config(config);
  const std::int64_t head_dim = source.integer("head_dim", config.head_dim());
  if (head_dim != config.head_dim()) {
    source.unsupported("head_dim",
                       fmt::format("{} (not hidden_size / num_attention_heads)", head_dim));
  }
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw InvalidArgument(
        fmt::format("{} has no config.json; name a folder with config.json and model.safetensors, "
                    "such as RUN/checkpoints/step-N",
                    folder.string()));
  }
  constexpr std::int64_t kLargest = 1 << 22;
  return parse_model_config(read_text_file(path, kLargest), path.string());
}

std::string model_config_json(const ModelConfig& config, std::int64_t max_position_embeddings) {
  nlohmann::ordered_json object;
  object["architectures"] = nlohmann::ordered_json::array({"LlamaForCausalLM"});
  object["model_type"] = "llama";
  object["vocab_size"] = config.vocab_size;
  object["hidden_size"] = config.hidden_size;
  object["intermediate_size"] = config.intermediate_size;
  object["num_hidden_layers"] = config.num_hidden_layers;
  object["num_attention_heads"] = config.num_attention_heads;
  object["num_key_value_heads"] = config.num_key_value_heads;
  object["head_dim"] = config.head_dim();
  object["max_position_embeddings"] = max_position_embeddings;
  object["hidden_act"] = "silu";
  object["rms_norm_eps"] = config.rms_norm_eps;
  // transformers 4 reads the first form, 5 the second.
  object["rope_theta"] = config.rope_theta;
  object["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", config.rope_theta}};
  object["tie_word_embeddings"] = config.tie_word_embeddings;
  object["attention_bias"] = false;
  object["mlp_bias"] = false;
  object["initializer_range"] = config.initializer_range;
  object["bos_token_id"] = nullptr;
  object["eos_token_id"] = nullptr;
  object["torch_dtype"] = name_of(config.dtype, kDTypeNames);
  return object.dump(2) + "\n";
}

std::vector<WeightShape> weight_shapes(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim();
  std::vector<WeightShape> shapes{{kEmbeddingName, {config.vocab_size, hidden}}};
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      shapes.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), std::move(shape)});
    };
    add("input_layernorm", {hidden});
    add("self_attn.q_proj", {hidden, hidden});
    add("self_attn.k_proj", {kv_width, hidden});
    add("self_attn.v_proj", {kv_width, hidden});
    add("self_attn.o_proj", {hidden, hidden});
    add("post_attention_layernorm", {hidden});
    add("mlp.gate_proj", {config.intermediate_size, hidden});
    add("mlp.up_proj", {config.intermediate_size, hidden});
    add("mlp.down_proj", {hidden, config.intermediate_size});
  }
  shapes.push_back({"model.norm.weight", {hidden}});
  if (!config.tie_word_embeddings) shapes.push_back({kHeadName, {config.vocab_size, hidden}});
  return shapes;
}

}  // namespace sluice
