// config.h - the shape of a Llama-family model. Free of torch. Read next: layout.h, parameter.h.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

/// Storage and compute type of weights and activations. Statistics (norms, softmax, losses) are at
/// least fp32.
enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16 };

/// What a forward keeps for its backward. `selective` recomputes norms, rotary inputs and the
/// SwiGLU product; `full` keeps each layer's input alone.
enum class Recompute : std::uint8_t { kNone, kSelective, kFull };

/// Names as in a Hugging Face config.json.
struct ModelConfig {
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 128;
  std::int64_t intermediate_size = 352;
  std::int64_t num_hidden_layers = 4;
  std::int64_t num_attention_heads = 4;
  std::int64_t num_key_value_heads = 2;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  DType dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;

  std::int64_t head_dim() const { return hidden_size / num_attention_heads; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Throws: InvalidArgument naming the key, the value and the rule, for sizes that cannot work
/// (heads must divide hidden_size, key-value heads must divide heads, head_dim even, all >= 1).
void check_config(const ModelConfig& config);

/// Parameters of the whole model; with tied embeddings the shared matrix counts once.
std::int64_t num_parameters(const ModelConfig& config);

/// Floating-point operations of one training token (forward and backward, causal attention counted
/// as the half it is, no recompute): the numerator of MFU. Context length in tokens.
double training_flops_per_token(const ModelConfig& config, std::int64_t sequence_length);

}  // namespace sluice
