#include "sluice/train/checkpoint_state.h"

#include <nlohmann/json.hpp>

#include "sluice/common/errors.h"
#include "sluice/train/config_keys.h"
#include "sluice/train/files.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "sluice checkpoint";
constexpr int kVersion = 1;

json model_json(const ModelConfig& model) {
  return {{"vocab_size", model.vocab_size},
          {"hidden_size", model.hidden_size},
          {"intermediate_size", model.intermediate_size},
          {"num_hidden_layers", model.num_hidden_layers},
          {"num_attention_heads", model.num_attention_heads},
          {"num_key_value_heads", model.num_key_value_heads},
          {"rope_theta", model.rope_theta},
          {"rms_norm_eps", model.rms_norm_eps},
          {"tie_word_embeddings", model.tie_word_embeddings},
          {"initializer_range", model.initializer_range},
          {"dtype", name_of(model.dtype, kDTypeNames)}};
}

ModelConfig model_from(const json& object) {
  ModelConfig model;
  object.at("vocab_size").get_to(model.vocab_size);
  object.at("hidden_size").get_to(model.hidden_size);
  object.at("intermediate_size").get_to(model.intermediate_size);
  object.at("num_hidden_layers").get_to(model.num_hidden_layers);
  object.at("num_attention_heads").get_to(model.num_attention_heads);
  object.at("num_key_value_heads").get_to(model.num_key_value_heads);
  object.at("rope_theta").get_to(model.rope_theta);
  object.at("rms_norm_eps").get_to(model.rms_norm_eps);
  object.at("tie_word_embeddings").get_to(model.tie_word_embeddings);
  object.at("initializer_range").get_to(model.initializer_range);
  const auto dtype = object.at("dtype").get<std::string>();
  for (const auto& entry : kDTypeNames) {
    if (entry.name == dtype) model.dtype = entry.value;
  }
  return model;
}

json body_json(const CheckpointState& state, const std::map<std::string, FileRecord>& files) {
  json object{{"format", kFormat},
              {"version", kVersion},
              {"step", state.step},
              {"next_sample", state.next_sample},
              {"tokens", state.tokens},
              {"seed", state.seed},
              {"model", model_json(state.model)},
              {"data", {{"sequence_length", state.sequence_length}, {"digest", state.data_digest}}},
              {"learning_rate",
               {{"peak", state.learning_rate},
                {"min", state.min_learning_rate},
                {"warmup_steps", state.warmup_steps},
                {"steps", state.steps}}},
              {"config_digest", state.config_digest},
              {"files", json::object()}};
  for (const auto& [name, record] : files) {
    object["files"][name] = {{"bytes", record.num_bytes}, {"xxh64", record.xxh64}};
  }
  return object;
}

std::string checksum_of(const json& body) { return hash_text(hash64(body.dump())); }

StoredState stored_from(const json& object) {
  StoredState stored;
  CheckpointState& state = stored.state;
  object.at("step").get_to(state.step);
  object.at("next_sample").get_to(state.next_sample);
  object.at("tokens").get_to(state.tokens);
  object.at("seed").get_to(state.seed);
  state.model = model_from(object.at("model"));
  object.at("data").at("sequence_length").get_to(state.sequence_length);
  object.at("data").at("digest").get_to(state.data_digest);
  const json& rate = object.at("learning_rate");
  rate.at("peak").get_to(state.learning_rate);
  rate.at("min").get_to(state.min_learning_rate);
  rate.at("warmup_steps").get_to(state.warmup_steps);
  rate.at("steps").get_to(state.steps);
  object.at("config_digest").get_to(state.config_digest);
  for (const auto& [name, record] : object.at("files").items()) {
    stored.files[name] = {record.at("bytes").get<std::int64_t>(),
                          record.at("xxh64").get<std::string>()};
  }
  return stored;
}

[[noreturn]] void damaged(const std::string& origin, const std::string& what) {
  throw Failure(fmt::format("{} {}; remove that checkpoint folder to resume from the one before it",
                            origin, what));
}

}  // namespace

CheckpointState make_state(const RunConfig& config, std::int64_t step, std::int64_t next_sample,
                           std::int64_t tokens, const std::string& data_digest) {
  return {.step = step,
          .next_sample = next_sample,
          .tokens = tokens,
          .seed = config.run.seed,
          .sequence_length = config.data.sequence_length,
          .data_digest = data_digest,
          .config_digest = hash_text(hash64(to_toml(config))),
          .model = config.model,
          .learning_rate = config.train.learning_rate,
          .min_learning_rate = config.train.min_learning_rate,
          .warmup_steps = config.train.warmup_steps,
          .steps = config.train.steps};
}

std::string state_json(const CheckpointState& state,
                       const std::map<std::string, FileRecord>& files) {
  json object = body_json(state, files);
  object["checksum"] = checksum_of(object);
  return object.dump(2) + "\n";
}

StoredState parse_state_json(const std::string& text, const std::string& origin) {
  json object;
  try {
    object = json::parse(text);
    if (object.value("format", "") != kFormat) damaged(origin, "is not the state of a checkpoint");
    if (object.at("version") != kVersion) {
      throw Failure(fmt::format("{} has version {}; this sluice reads version {}", origin,
                                object.at("version").dump(), kVersion));
    }
    const std::string checksum = object.at("checksum").get<std::string>();
    object.erase("checksum");
    if (checksum_of(object) != checksum) damaged(origin, "was altered: its checksum differs");
    return stored_from(object);
  } catch (const json::exception&) {
    damaged(origin, "is damaged");
  }
}

StoredState read_state(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / "state.json";
  constexpr std::int64_t kLargest = 1 << 22;
  return parse_state_json(read_text_file(path, kLargest), path.string());
}

void verify_checkpoint_files(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder / "state.json", error)) return;
  for (const auto& [name, record] : read_state(folder).files) {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::exists(path, error)) damaged(path.string(), "is missing");
    const MappedFile file(path);
    const auto num_bytes = static_cast<std::int64_t>(file.bytes().size());
    if (num_bytes != record.num_bytes) {
      damaged(path.string(),
              fmt::format("has {} bytes, {} were written", num_bytes, record.num_bytes));
    }
    if (hash_text(hash64(file.bytes())) != record.xxh64) {
      damaged(path.string(), "was altered: its checksum differs");
    }
  }
}

std::vector<std::string> check_resume(const CheckpointState& state, const RunConfig& config,
                                      const std::string& data_digest) {
  const std::string fresh =
      "or start a new run.dir from its weights with model.weights = \"RUN/checkpoints/step-N\"";
  const auto same = [&](const char* key, const auto& now, const auto& then) {
    if (now == then) return;
    throw InvalidArgument(
        fmt::format("{} = {}: the checkpoint of step {} was made with {}; set it "
                    "back to resume, {}",
                    key, now, state.step, then, fresh));
  };
  const ModelConfig &now = config.model, &then = state.model;
  same("model.vocab_size", now.vocab_size, then.vocab_size);
  same("model.hidden_size", now.hidden_size, then.hidden_size);
  same("model.intermediate_size", now.intermediate_size, then.intermediate_size);
  same("model.num_hidden_layers", now.num_hidden_layers, then.num_hidden_layers);
  same("model.num_attention_heads", now.num_attention_heads, then.num_attention_heads);
  same("model.num_key_value_heads", now.num_key_value_heads, then.num_key_value_heads);
  same("model.rope_theta", now.rope_theta, then.rope_theta);
  same("model.rms_norm_eps", now.rms_norm_eps, then.rms_norm_eps);
  same("model.tie_word_embeddings", now.tie_word_embeddings, then.tie_word_embeddings);
  same("model.dtype", name_of(now.dtype, kDTypeNames), name_of(then.dtype, kDTypeNames));
  same("data.sequence_length", config.data.sequence_length, state.sequence_length);
  same("run.seed", config.run.seed, state.seed);
  if (data_digest != state.data_digest) {
    throw InvalidArgument(
        fmt::format("data.paths: the files, their sizes or their split changed since the "
                    "checkpoint of step {}; "
                    "bring the old data back to resume, {}",
                    state.step, fresh));
  }

  std::vector<std::string> changes;
  const auto note = [&](const char* key, const auto& value, const auto& before) {
    if (value != before) changes.push_back(fmt::format("{} = {} (was {})", key, value, before));
  };
  note("train.learning_rate", config.train.learning_rate, state.learning_rate);
  note("train.min_learning_rate", config.train.min_learning_rate, state.min_learning_rate);
  note("train.warmup_steps", config.train.warmup_steps, state.warmup_steps);
  note("train.steps", config.train.steps, state.steps);
  return changes;
}

}  // namespace sluice
