#include "sluice/model/accounting.h"

#include <algorithm>

#include "sluice/model/attention_tiles.h"

namespace sluice {
namespace {

std::int64_t value_bytes(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

std::int64_t statistics_bytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

enum class PassMode : std::uint8_t { kBackward, kBackwardInput };

// Replays the allocations of the passes, statement by statement, in the order of the code of
// stage.cc, decoder_layer.cc, attention_block.cc, mlp_block.cc and output_layer.cc. Bytes are
// workspace until they are kept; kept ones are activations.
class Replay {
 public:
  Replay(const ModelConfig& config, std::int64_t batch, std::int64_t tokens, bool sliced)
      : config_(config), sliced_(sliced) {
    const std::int64_t rows = batch * tokens, value = value_bytes(config.dtype);
    const std::int64_t statistics = statistics_bytes(config.dtype);
    const std::int64_t kv_width = config.num_key_value_heads * config.head_dim();
    row_ = rows * statistics;
    x_ = rows * config.hidden_size * value;
    kv_ = rows * kv_width * value;
    dkv_ = rows * kv_width * statistics;
    qkv_ = x_ + 2 * kv_;
    lse_ = rows * config.num_attention_heads * statistics;
    gate_up_ = rows * 2 * config.intermediate_size * value;
    activation_ = rows * config.intermediate_size * value;
    ids_ = rows * 8;
    logits_ = loss_tile_rows(config, rows) * config.vocab_size * statistics;
    const std::int64_t head = config.head_dim();
    attention_forward_ = AttentionScratch::forward(tokens, tokens, head, sliced).size * statistics;
    attention_backward_ =
        AttentionScratch::backward(tokens, tokens, head, sliced).size * statistics;
    all_ = config.recompute == Recompute::kNone;
    full_ = config.recompute == Recompute::kFull;
  }

  std::int64_t x() const { return x_; }
  std::int64_t ids() const { return ids_; }
  std::int64_t row() const { return row_; }
  std::int64_t key_values() const { return 2 * kv_; }
  std::int64_t key_value_gradients() const { return 2 * dkv_; }

  std::int64_t layer_saved() const {
    if (full_) return x_;
    const std::int64_t attention =
        x_ + row_ + (all_ ? x_ : 0) + x_ + (sliced_ ? 0 : 2 * kv_) + x_ + lse_;
    const std::int64_t mlp = x_ + row_ + (all_ ? x_ : 0) + gate_up_ + (all_ ? activation_ : 0);
    return attention + mlp;
  }

  // Operand pairs of down, gate_up, o, qkv.
  std::int64_t layer_saved_for_weight() const {
    return (x_ + activation_) + (gate_up_ + x_) + (x_ + x_) + (qkv_ + x_);
  }

  /// What a pass reaches: of workspace alone, of activations alone, of both together. The input
  /// that comes from another stage is not in `total`: it is counted as boundary for the whole pass.
  struct Peaks {
    std::int64_t workspace = 0, activations = 0, total = 0, kv_gradient = 0;
  };

  Peaks forward(const StageLayers& layers) {
    restart(0);
    if (layers.has_embedding) {
      hold(ids_);
      take(x_);
    }
    for (int layer = 0; layer < layers.num_layers; ++layer) {
      if (layer > 0 || layers.has_embedding) {
        keep(x_);  // the layer's input
      } else {
        adopt(x_);
      }
      attention_forward(full_ ? Saves::kNothing : Saves::kKept);
      if (!full_) keep(x_);  // the middle
      mlp_forward();
      if (full_) give(x_);
    }
    if (layers.has_head) {
      if (layers.num_layers > 0 || layers.has_embedding) {
        keep(x_);
      } else {
        adopt(x_);
      }
      hold(ids_);
    }
    if (layers.has_final_norm) {
      layers.num_layers > 0 ? keep(x_) : adopt(x_);
      take(row_);
      take(x_);  // y
      keep(row_);
    }
    return peaks_;
  }

  /// `saved`: activations of the stage when the pass begins. `made`: slices whose dk and dv the
  /// pass makes.
  Peaks backward(const StageLayers& layers, PassMode mode, std::int64_t saved, std::int64_t made) {
    restart(saved);
    deferred_ = mode == PassMode::kBackwardInput;
    gradients_made_ = made;
    if (layers.has_head) {
      take(row_);
      take(x_);
      take(logits_);
      give(logits_);
      take(x_);
      give(row_);
      give(x_);
      drop(x_ + ids_);
    }
    if (layers.has_final_norm) {
      take(x_);
      drop(x_ + row_);
    }
    for (int layer = layers.num_layers; layer-- > 0;) {
      const bool own_dy = layer + 1 < layers.num_layers || layers.has_head || layers.has_final_norm;
      layer_backward(own_dy);
    }
    return peaks_;
  }

 private:
  enum class Saves : std::uint8_t { kKept, kTransient, kNothing };

  void restart(std::int64_t activations) {
    workspace_ = 0;
    activations_ = total_ = activations;
    kv_gradient_ = 0;
    peaks_ = {0, activations, activations, 0};
  }
  void note() {
    peaks_.workspace = std::max(peaks_.workspace, workspace_);
    peaks_.activations = std::max(peaks_.activations, activations_);
    peaks_.total = std::max(peaks_.total, total_);
    peaks_.kv_gradient = std::max(peaks_.kv_gradient, kv_gradient_);
  }
  void take(std::int64_t bytes) {  // allocated
    workspace_ += bytes;
    total_ += bytes;
    note();
  }
  void give(std::int64_t bytes) {  // workspace freed
    workspace_ -= bytes;
    total_ -= bytes;
  }
  void keep(std::int64_t bytes) {  // workspace becomes kept
    workspace_ -= bytes;
    activations_ += bytes;
    note();
  }
  void hold(std::int64_t bytes) {  // allocated, and kept at once
    take(bytes);
    keep(bytes);
  }
  void share(std::int64_t bytes) {  // allocated, and at once the KeyValueContext's
    take(bytes);
    workspace_ -= bytes;
  }
  void unshare(std::int64_t bytes) { total_ -= bytes; }
  void adopt(std::int64_t bytes) {  // a boundary tensor becomes kept
    activations_ += bytes;
    note();
  }
  void drop(std::int64_t bytes) {  // kept bytes freed
    activations_ -= bytes;
    total_ -= bytes;
  }
  void take_or_hold(bool kept, std::int64_t bytes) { kept ? hold(bytes) : take(bytes); }
  void give_or_drop(bool kept, std::int64_t bytes) { kept ? drop(bytes) : give(bytes); }

  // Leaves y on the books, and with kTransient all that recompute() fills.
  void attention_forward(Saves saves) {
    const bool kept = saves == Saves::kKept;
    const bool normed_kept = all_ && kept;
    take_or_hold(kept, row_);
    take_or_hold(normed_kept, x_);
    take(qkv_);
    if (!normed_kept) give(x_);
    take_or_hold(kept, x_);  // q
    // With slices k and v belong to the context, which counts them; a rebuilt pair is dropped.
    const bool own_kv = !sliced_ || saves == Saves::kTransient;
    for (int i = 0; i < 2; ++i) own_kv ? take_or_hold(kept && !sliced_, kv_) : share(kv_);
    give(qkv_);
    take_or_hold(kept, x_);  // out
    take_or_hold(kept, lse_);
    take(attention_forward_);
    give(attention_forward_);
    take(x_);  // y
    if (saves == Saves::kNothing) give(row_ + x_ + (own_kv ? 2 * kv_ : 0) + x_ + lse_);
    if (saves == Saves::kTransient && sliced_) give(2 * kv_);
  }

  void mlp_project(bool kept, bool normed_kept) {
    take_or_hold(normed_kept, x_);
    take_or_hold(kept, row_);
    take_or_hold(kept, gate_up_);
    if (!normed_kept) give(x_);
  }

  void mlp_forward() {
    mlp_project(/*kept=*/!full_, /*normed_kept=*/all_);
    take_or_hold(all_, activation_);
    take(x_);  // y
    if (!all_) give(activation_);
    if (full_) give(row_ + gate_up_);
  }

  void layer_backward(bool own_dy) {
    if (full_) {
      attention_forward(Saves::kTransient);
      mlp_project(/*kept=*/false, /*normed_kept=*/false);
      if (deferred_) keep(x_ + gate_up_);
    }
    mlp_backward(own_dy);
    attention_backward();
  }

  // A gradient that enters a block: on the books already if `own`.
  void mlp_backward(bool own_dy) {
    if (deferred_) own_dy ? keep(x_) : adopt(x_);
    const bool rebuild = !all_;
    take_or_hold(rebuild && deferred_, activation_);
    if (!rebuild || !deferred_) give(activation_);
    if (!rebuild && !deferred_) drop(activation_);
    take_or_hold(rebuild && deferred_, x_);  // gradient of the norm's output, then that output
    take(x_);                                // dx
    if (!rebuild) give(x_);
    give_or_drop(!full_, x_ + row_);
    if (!deferred_) {
      give_or_drop(!full_, gate_up_);
      give_or_drop(!rebuild, x_);
      if (own_dy) give(x_);
    }
  }

  void attention_backward() {
    if (deferred_) keep(x_);
    const bool rebuild = !all_;
    take(x_);  // dout
    take(x_);  // dq
    if (!sliced_) take(2 * dkv_);
    for (std::int64_t i = 0; i < 2 * gradients_made_; ++i) {
      kv_gradient_ += dkv_;
      share(dkv_);
    }
    take(attention_backward_);
    give(attention_backward_);
    if (sliced_) unshare(2 * kv_);
    give(x_);  // dout
    give_or_drop(!full_, x_ + (sliced_ ? 0 : 2 * kv_) + (deferred_ ? 0 : x_) + lse_);
    take_or_hold(deferred_, qkv_);
    give(x_);  // dq
    if (sliced_) {
      unshare(2 * dkv_);
      kv_gradient_ -= 2 * dkv_;
    } else {
      give(2 * dkv_);
    }
    take_or_hold(rebuild && deferred_, x_);
    take(x_);  // dx
    if (!rebuild) give(x_);
    drop(x_);
    give_or_drop(!full_, row_);
    if (!deferred_) {
      give(qkv_);
      give_or_drop(!rebuild, x_);
      give(x_);  // dy
    }
  }

  const ModelConfig& config_;
  bool sliced_, all_ = false, full_ = false, deferred_ = false;
  std::int64_t row_ = 0, x_ = 0, kv_ = 0, dkv_ = 0, qkv_ = 0, lse_ = 0, gate_up_ = 0,
               activation_ = 0, ids_ = 0, logits_ = 0, attention_forward_ = 0,
               attention_backward_ = 0;
  std::int64_t gradients_made_ = 0;
  std::int64_t workspace_ = 0, activations_ = 0, total_ = 0, kv_gradient_ = 0;
  Peaks peaks_;
};

std::int64_t stage_parameters(const ModelConfig& config, const StageLayers& layers) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim();
  const std::int64_t layer = 2 * hidden * hidden + 2 * hidden * kv_width +
                             3 * hidden * config.intermediate_size + 2 * hidden;
  const std::int64_t vocabulary = config.vocab_size * hidden;
  return layers.num_layers * layer + (layers.has_embedding ? vocabulary : 0) +
         (layers.has_head ? vocabulary + hidden : 0) + (layers.has_final_norm ? hidden : 0);
}

}  // namespace

std::int64_t loss_tile_rows(const ModelConfig& config, std::int64_t rows) {
  // Every tile reads the whole output matrix twice and its gradient once, so a tile should not be
  // small; half the size of that matrix costs 5 % of speed against all rows at once. Small
  // vocabularies get a few MB.
  constexpr std::int64_t kSmallTile = std::int64_t{1} << 20, kRowStep = 16;
  const std::int64_t limit =
      std::max({config.hidden_size / 2, kSmallTile / config.vocab_size, kRowStep});
  const std::int64_t num_tiles = (rows + limit - 1) / limit;
  const std::int64_t even = (rows + num_tiles - 1) / num_tiles;
  return std::min(rows, (even + kRowStep - 1) / kRowStep * kRowStep);
}

StageBytes stage_bytes(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens, std::int64_t num_slices) {
  Replay replay(config, batch, tokens, num_slices > 1);
  const std::int64_t num_layers = layers.num_layers;
  StageBytes bytes;
  bytes.weights = stage_parameters(config, layers) * value_bytes(config.dtype);
  bytes.gradients = stage_parameters(config, layers) * statistics_bytes(config.dtype);
  bytes.saved = num_layers * replay.layer_saved() + (layers.has_embedding ? replay.ids() : 0) +
                (layers.has_head ? replay.x() + replay.ids() : 0) +
                (layers.has_final_norm ? replay.x() + replay.row() : 0);
  bytes.saved_for_weight = num_layers * replay.layer_saved_for_weight();
  bytes.boundary = replay.x();
  if (num_slices > 1) {
    bytes.kv_cache = num_layers * replay.key_values();
    bytes.kv_gradient = num_layers * replay.key_value_gradients();
  }
  const auto forward = replay.forward(layers);
  bytes.workspace_forward = forward.workspace;
  bytes.peak_forward = forward.total;
  const auto backward = replay.backward(layers, PassMode::kBackward, bytes.saved, 0);
  bytes.workspace_backward = backward.workspace;
  bytes.peak_backward = backward.total;
  const auto input = replay.backward(layers, PassMode::kBackwardInput, bytes.saved, 0);
  bytes.workspace_backward_input = input.workspace;
  bytes.peak_saved_backward_input = input.activations;
  bytes.peak_backward_input = input.total;
  const std::int64_t made = num_slices > 1 ? num_slices : 0;
  const auto last = replay.backward(layers, PassMode::kBackward, bytes.saved, made);
  const auto last_input = replay.backward(layers, PassMode::kBackwardInput, bytes.saved, made);
  bytes.last_slice = {last.kv_gradient, last.workspace, last_input.workspace, last.total,
                      last_input.total};
  return bytes;
}

namespace {

// `context`: keys that the first token sees before its own.
StageFlops flops_after(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens, std::int64_t context) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto kv_width = static_cast<double>(config.num_key_value_heads * config.head_dim());
  const double rows = static_cast<double>(batch) * static_cast<double>(tokens);
  const double linear =
      2.0 * rows * hidden *
      (2.0 * hidden + 2.0 * kv_width + 3.0 * static_cast<double>(config.intermediate_size));
  // Two products over the half of the slice's own scores that a causal mask leaves, and over all
  // earlier keys.
  const double attention =
      4.0 * rows * hidden * (static_cast<double>(context) + 0.5 * static_cast<double>(tokens));
  const double output = 2.0 * rows * hidden * static_cast<double>(config.vocab_size);
  const auto num_layers = static_cast<double>(layers.num_layers);
  StageFlops flops{.forward = num_layers * (linear + attention),
                   .backward_input = num_layers * (linear + 2.5 * attention),
                   .backward_weight = num_layers * linear,
                   .half_slice = num_layers * 2.0 * rows * hidden * static_cast<double>(tokens)};
  if (layers.has_embedding) flops.backward_input += rows * hidden;
  if (layers.has_head) flops.backward_input += 3.0 * output;
  return flops;
}

}  // namespace

StageFlops stage_flops(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens) {
  return flops_after(config, layers, batch, tokens, 0);
}

StageFlops slice_flops(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens, int slice) {
  return flops_after(config, layers, batch, tokens, slice * tokens);
}

}  // namespace sluice
