#include "sluice/model/config.h"

#include <cmath>
#include <string_view>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;

void check_size(std::string_view key, std::int64_t value) {
  if (value < 1 || value > kLargestSize) {
    throw InvalidArgument(
        fmt::format("model.{} is {}: it must be between 1 and {}", key, value, kLargestSize));
  }
}

void check_positive(std::string_view key, double value) {
  if (!(value > 0.0) || !std::isfinite(value)) {
    throw InvalidArgument(
        fmt::format("model.{} is {}: it must be a finite number above 0", key, value));
  }
}

}  // namespace

void check_config(const ModelConfig& config) {
  check_size("vocab_size", config.vocab_size);
  check_size("hidden_size", config.hidden_size);
  check_size("intermediate_size", config.intermediate_size);
  check_size("num_hidden_layers", config.num_hidden_layers);
  check_size("num_attention_heads", config.num_attention_heads);
  check_size("num_key_value_heads", config.num_key_value_heads);
  check_positive("rope_theta", config.rope_theta);
  check_positive("rms_norm_eps", config.rms_norm_eps);
  check_positive("initializer_range", config.initializer_range);
  if (config.hidden_size % config.num_attention_heads != 0) {
    throw InvalidArgument(fmt::format(
        "model.num_attention_heads is {}: it must divide model.hidden_size, which is {}",
        config.num_attention_heads, config.hidden_size));
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw InvalidArgument(fmt::format(
        "model.num_key_value_heads is {}: it must divide model.num_attention_heads, which is {}",
        config.num_key_value_heads, config.num_attention_heads));
  }
  if (config.head_dim() % 2 != 0) {
    throw InvalidArgument(fmt::format(
        "model.num_attention_heads is {}: heads of {} (hidden_size / num_attention_heads) are odd, "
        "and rotary embedding needs an even head size",
        config.num_attention_heads, config.head_dim()));
  }
}

std::int64_t num_parameters(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim();
  const std::int64_t layer = 2 * hidden * hidden + 2 * hidden * kv_width +
                             3 * hidden * config.intermediate_size + 2 * hidden;
  const std::int64_t vocabulary = config.vocab_size * hidden;
  return config.num_hidden_layers * layer + hidden +
         vocabulary * (config.tie_word_embeddings ? 1 : 2);
}

double training_flops_per_token(const ModelConfig& config, std::int64_t sequence_length) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto kv_width = static_cast<double>(config.num_key_value_heads * config.head_dim());
  const auto layers = static_cast<double>(config.num_hidden_layers);
  const double weights_per_layer = 2.0 * hidden * hidden + 2.0 * hidden * kv_width +
                                   3.0 * hidden * static_cast<double>(config.intermediate_size);
  const double weights =
      layers * weights_per_layer + hidden * static_cast<double>(config.vocab_size);
  // Scores and weighted values: 2 products of 2 FLOPs over half the context, three times with the
  // backward pass.
  const double attention = layers * 6.0 * hidden * static_cast<double>(sequence_length);
  return 6.0 * weights + attention;
}

}  // namespace sluice
