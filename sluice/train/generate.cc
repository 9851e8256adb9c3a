#include "sluice/train/generate.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/train/checkpoint.h"
#include "sluice/train/hf_config.h"
#include "sluice/train/tensors.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path resolve_folder(const fs::path& folder) {
  if (fs::exists(folder / "config.json")) return folder;
  const LatestCheckpoint latest = latest_checkpoint(folder / "checkpoints");
  if (latest.path) return *latest.path;
  throw InvalidArgument(fmt::format(
      "{} holds no model: name a run folder with a finished checkpoint, a checkpoint, or a folder "
      "with config.json and model.safetensors",
      folder.string()));
}

/// Draws from softmax(logits / temperature) over the top_k likeliest.
std::int64_t draw(std::span<const double> logits, const GenerateOptions& options,
                  std::mt19937_64& random) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::size_t a, std::size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const std::size_t kept = options.top_k > 0
                               ? std::min(order.size(), static_cast<std::size_t>(options.top_k))
                               : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    likelier);
  if (options.temperature == 0.0) return static_cast<std::int64_t>(order.front());
  std::vector<double> cumulative(kept);
  double sum = 0.0;
  for (std::size_t i = 0; i < kept; ++i) {
    sum += std::exp((logits[order[i]] - logits[order.front()]) / options.temperature);
    cumulative[i] = sum;
  }
  // 53 random bits, so that the draw is the same with every standard library.
  const double point = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  const auto hit = std::upper_bound(cumulative.begin(), cumulative.end(), point);
  const auto index =
      std::min<std::ptrdiff_t>(hit - cumulative.begin(), static_cast<std::ptrdiff_t>(kept) - 1);
  return static_cast<std::int64_t>(order[static_cast<std::size_t>(index)]);
}

}  // namespace

Generator::Generator(const fs::path& folder) : source_(resolve_folder(folder)) {
  const RankThreadInit init;
  if (fs::exists(source_ / "state.json")) {
    const StoredState stored = read_state(source_);
    config_ = stored.state.model;
    context_length_ = stored.state.sequence_length;
  } else {
    config_ = read_model_config(source_);
  }
  const TensorFiles weights = open_weights(source_, config_);
  stage_ =
      std::make_unique<Stage>(config_,
                              StageLayers{.num_layers = static_cast<int>(config_.num_hidden_layers),
                                          .has_embedding = true,
                                          .has_head = true},
                              at::kCPU, 0);
  for (Parameter& parameter : stage_->parameters()) load_parameter(weights, parameter);
}

Generator::~Generator() = default;

void Generator::generate(std::span<const std::int64_t> prompt, const GenerateOptions& options,
                         const std::function<void(std::int64_t)>& emit) {
  const RankThreadInit init;
  std::vector<std::int64_t> tokens(prompt.begin(), prompt.end());
  SLUICE_CHECK(!tokens.empty(), "nothing to continue");
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      throw InvalidArgument(fmt::format("token {} of the prompt is outside the vocabulary of {}",
                                        token, config_.vocab_size));
    }
  }
  std::mt19937_64 random(options.seed);
  for (std::int64_t i = 0; i < options.num_tokens; ++i) {
    const auto length = std::min(static_cast<std::int64_t>(tokens.size()), context_length_);
    StageInput input;
    input.tokens_BT = at::empty({1, length}, at::kLong);
    std::copy(tokens.end() - length, tokens.end(), input.tokens_BT.data_ptr<std::int64_t>());
    KeyValueContext context;
    const at::Tensor logits_V =
        stage_->last_logits(input, context).reshape({-1}).to(at::kDouble).contiguous();
    const std::span<const double> logits(logits_V.data_ptr<double>(),
                                         static_cast<std::size_t>(logits_V.numel()));
    tokens.push_back(draw(logits, options, random));
    emit(tokens.back());
  }
}

}  // namespace sluice
