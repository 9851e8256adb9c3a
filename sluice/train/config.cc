#include "sluice/train/config.h"

#include <algorithm>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"
#include "sluice/train/config_reader.h"
#include "sluice/train/files.h"
#include "sluice/train/hf_config.h"

namespace sluice {
namespace {

constexpr double kNotGiven = -1.0;

/// Defaults that follow from other keys.
void resolve(TrainConfig& train) {
  if (train.min_learning_rate == kNotGiven) train.min_learning_rate = train.learning_rate / 10.0;
  if (train.warmup_steps == static_cast<std::int64_t>(kNotGiven)) {
    train.warmup_steps = std::min<std::int64_t>(train.steps / 20, 100);
  }
}

template <typename T>
void require_same(const char* key, const T& asked, const T& imported, const std::string& folder) {
  if (asked == imported) return;
  throw InvalidArgument(
      fmt::format("model.{} = {}: the weights in {} were made with {}; leave the key out", key,
                  asked, folder, imported));
}

/// With model.weights a key of the model may repeat what the folder says, not contradict it.
void check_against_weights(const ModelConfig& asked, const ModelConfig& imported,
                           const std::string& folder) {
  const auto same = [&](const char* key, auto member) {
    require_same(key, asked.*member, imported.*member, folder);
  };
  same("vocab_size", &ModelConfig::vocab_size);
  same("hidden_size", &ModelConfig::hidden_size);
  same("intermediate_size", &ModelConfig::intermediate_size);
  same("num_hidden_layers", &ModelConfig::num_hidden_layers);
  same("num_attention_heads", &ModelConfig::num_attention_heads);
  same("num_key_value_heads", &ModelConfig::num_key_value_heads);
  same("rope_theta", &ModelConfig::rope_theta);
  same("rms_norm_eps", &ModelConfig::rms_norm_eps);
  same("tie_word_embeddings", &ModelConfig::tie_word_embeddings);
}

/// Slices have equal lengths, so that a backward frees exactly what the next forward takes.
void check_slices(std::int64_t slices, std::int64_t length) {
  if (length % slices == 0) return;
  const std::int64_t below = length / slices * slices, above = below + slices;
  throw InvalidArgument(fmt::format(
      "data.sequence_length = {}: pipeline.slices = {} does not divide it into equal slices; the "
      "nearest lengths that fit are {}, or take fewer slices",
      length, slices,
      below == 0 ? fmt::format("{}", above) : fmt::format("{} and {}", below, above)));
}

void check_exchange(const RunConfig& config) {
  const PipelineConfig& pipeline = config.pipeline;
  if (pipeline.exchange == "none" || pipeline.exchange == "auto") return;
  if (pipeline.slices == 1) {
    throw InvalidArgument(fmt::format(
        "pipeline.exchange = {}: attention is exchanged in slices, and pipeline.slices is 1; set "
        "pipeline.slices to {} or more",
        pipeline.exchange, std::max(2, pipeline.ranks)));
  }
  if (!can_halve_slices(config)) {
    throw InvalidArgument(fmt::format(
        "pipeline.exchange = {}: slices of one token cannot be halved with "
        "model.num_key_value_heads = {}; set pipeline.slices to {} or less",
        pipeline.exchange, config.model.num_key_value_heads, config.data.sequence_length / 2));
  }
}

}  // namespace

void check_run_config(const RunConfig& config) {
  check_config(config.model);
  if (config.data.paths.empty()) {
    throw InvalidArgument(
        "data.paths is not given: name at least one file or folder to train on, such as "
        "data.paths = [\"/usr/lib/python3\"]");
  }
  find_schedule(config.pipeline.schedule);
  const TrainConfig& train = config.train;
  if (train.min_learning_rate > train.learning_rate) {
    throw InvalidArgument(fmt::format(
        "train.min_learning_rate = {}: must not be above train.learning_rate = {}; lower it or "
        "leave it out",
        train.min_learning_rate, train.learning_rate));
  }
  const std::string& vocab = config.pipeline.vocab;
  if (config.train.label_smoothing > 0.0 && !vocab.starts_with("parallel")) {
    throw InvalidArgument(
        fmt::format("train.label_smoothing = {} with pipeline.vocab = {}: only a sharded output "
                    "layer smooths labels; set pipeline.vocab = \"parallel-2\"",
                    config.train.label_smoothing, vocab));
  }
  if (vocab.starts_with("parallel") && config.model.vocab_size < config.pipeline.ranks) {
    throw InvalidArgument(
        fmt::format("pipeline.vocab = {}: a vocabulary of {} has no row for each of {} ranks; set "
                    "pipeline.vocab = \"last\" or use fewer ranks",
                    vocab, config.model.vocab_size, config.pipeline.ranks));
  }
  if (config.pipeline.microbatches % config.parallel.data != 0) {
    throw InvalidArgument(fmt::format(
        "pipeline.microbatches = {}: must be a multiple of parallel.data = {}, since every "
        "pipeline runs as many; change one of them",
        config.pipeline.microbatches, config.parallel.data));
  }
  if (config.run.dir.empty()) throw InvalidArgument("run.dir is empty: name a folder");
  check_slices(config.pipeline.slices, config.data.sequence_length);
  check_exchange(config);
}

RunConfig parse_config(std::string_view toml, const std::string& origin,
                       const std::vector<std::string>& overrides) {
  toml::table root = parse_toml_table(toml, origin);
  refuse_unknown_keys(root, origin);
  std::vector<std::string> overridden;
  for (const std::string& text : overrides) {
    apply_override(root, text);
    const std::string name = text.substr(0, text.find('='));
    overridden.push_back(name.substr(0, name.find_last_not_of(" \t") + 1));
  }

  RunConfig config;
  const std::string folder = root["model"]["weights"].value_or(std::string());
  if (!folder.empty()) config.model = read_model_config(folder);
  const ModelConfig imported = config.model;
  config.train.min_learning_rate = kNotGiven;
  config.train.warmup_steps = static_cast<std::int64_t>(kNotGiven);
  KeyReader reader(root, origin, std::move(overridden));
  visit_keys(config, reader);
  resolve(config.train);
  if (!folder.empty()) check_against_weights(config.model, imported, folder);
  check_run_config(config);
  return config;
}

RunConfig load_config(const std::filesystem::path& path,
                      const std::vector<std::string>& overrides) {
  constexpr std::int64_t kLargest = 1 << 20;
  std::string text;
  try {
    text = read_text_file(path, kLargest);
  } catch (const Failure& failure) {
    throw InvalidArgument(fmt::format("{}; name a config file", failure.what()));
  }
  return parse_config(text, path.string(), overrides);
}

bool can_halve_slices(const RunConfig& config) {
  return config.model.num_key_value_heads % 2 == 0 ||
         config.data.sequence_length / config.pipeline.slices >= 2;
}

}  // namespace sluice
