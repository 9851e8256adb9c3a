#include "sluice/model/accounting.h"

#include <algorithm>

namespace sluice {

std::int64_t loss_tile_rows(const ModelConfig& config, std::int64_t rows) {
  constexpr std::int64_t kTileElements = std::int64_t{1} << 22;
  const std::int64_t fitting = kTileElements / config.vocab_size / 16 * 16;
  return std::clamp(fitting, std::min<std::int64_t>(rows, 16), rows);
}

StageFlops stage_flops(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto kv_width = static_cast<double>(config.num_key_value_heads * config.head_dim());
  const double rows = static_cast<double>(batch) * static_cast<double>(tokens);
  const double linear =
      2.0 * rows * hidden *
      (2.0 * hidden + 2.0 * kv_width + 3.0 * static_cast<double>(config.intermediate_size));
  // Two products over the half of the scores that a causal mask leaves.
  const double attention = 2.0 * rows * hidden * static_cast<double>(tokens);
  const double output = 2.0 * rows * hidden * static_cast<double>(config.vocab_size);
  const auto num_layers = static_cast<double>(layers.num_layers);
  StageFlops flops{.forward = num_layers * (linear + attention),
                   .backward_input = num_layers * (linear + 2.5 * attention),
                   .backward_weight = num_layers * linear};
  if (layers.has_embedding) flops.backward_input += rows * hidden;
  if (layers.has_head) flops.backward_input += 3.0 * output;
  return flops;
}

}  // namespace sluice
