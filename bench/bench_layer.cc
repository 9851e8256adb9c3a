// Speed of a decoder layer and of the output layer on one thread, against plain matrix products of
// the same shapes. Example: bench_layer --tokens 512
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "sluice/model/attention.h"
#include "sluice/model/kernels.h"
#include "sluice/model/rotary.h"
#include "sluice/model/stage.h"
#include "sluice/model/vocab_layers.h"

namespace sluice {
namespace {

// CPU time of this thread: other programs on the machine take no part in it (but for the caches).
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Bench {
  int repeats = 7;

  // Median seconds of a call, after one to warm up.
  double median(const std::function<void()>& call) const {
    call();
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
      const double begin = thread_seconds();
      call();
      seconds.push_back(thread_seconds() - begin);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

struct Gemms {
  double forward = 0.0, backward = 0.0;  // seconds
};

// x W^T, then dy W and dW += dy^T x, for every matrix of a layer as the layer uses it.
Gemms layer_gemms(const Bench& bench, const ModelConfig& config, std::int64_t rows) {
  const std::int64_t hidden = config.hidden_size, width = config.intermediate_size;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim();
  Gemms seconds;
  for (const auto& [out, in] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{hidden + 2 * kv_width, hidden},
                                                          {hidden, hidden},
                                                          {2 * width, hidden},
                                                          {hidden, width}}) {
    const at::Tensor weight = at::randn({out, in}), x = at::randn({rows, in});
    at::Tensor y = at::randn({rows, out}), dx = at::empty({rows, in});
    at::Tensor gradient = at::zeros({out, in});
    seconds.forward += bench.median([&] { at::mm_out(y, x, weight.t()); });
    seconds.backward += bench.median([&] { at::mm_out(dx, y, weight); });
    seconds.backward += bench.median([&] { at::addmm_out(gradient, gradient, y.t(), x); });
  }
  return seconds;
}

struct Part {
  std::string name;
  double forward, backward;  // seconds
};

constexpr const char* kTorchAttention = "(torch's)";

std::vector<Part> layer_parts(const Bench& bench, const ModelConfig& config, std::int64_t batch,
                              std::int64_t tokens) {
  const std::int64_t rows = batch * tokens, hidden = config.hidden_size;
  const std::int64_t heads = config.num_attention_heads, size = config.head_dim();
  const std::int64_t kv_heads = config.num_key_value_heads;
  const at::Tensor x = at::randn({rows, hidden}), weight = at::randn({hidden});
  at::Tensor y = at::empty({rows, hidden}), dx = at::empty({rows, hidden});
  at::Tensor reciprocal = at::empty({rows}), weight_gradient = at::zeros({hidden});
  std::vector<Part> parts;
  parts.push_back({"norms (2)",
                   2 * bench.median([&] { rms_norm_forward(x, weight, 1e-5, y, reciprocal); }),
                   2 * bench.median([&] {
                     rms_norm_backward(x, weight, reciprocal, x, y, true, dx, weight_gradient);
                   })});

  at::Tensor gate_up = at::randn({rows, 2 * config.intermediate_size});
  at::Tensor activation = at::randn({rows, config.intermediate_size});
  const double swiglu = bench.median([&] { swiglu_forward(gate_up, activation); });
  parts.push_back(
      {"swiglu", swiglu, bench.median([&] { swiglu_backward(gate_up, activation, true); })});

  RotaryTable table(config, at::kCPU);
  const RotaryAngles& angles = table.up_to(tokens);
  at::Tensor qkv = at::randn({rows, (heads + 2 * kv_heads) * size});
  at::Tensor q = at::empty({batch, tokens, heads, size});
  at::Tensor k = at::empty({batch, kv_heads, tokens, size});
  at::Tensor v = at::empty({batch, kv_heads, tokens, size});
  const double rotary = bench.median([&] { rotary_forward(qkv, angles, 0, q, k, v); });
  parts.push_back(
      {"rotary", rotary, bench.median([&] { rotary_backward(q, k, v, angles, 0, qkv); })});

  rotary_forward(at::randn({rows, (heads + 2 * kv_heads) * size}), angles, 0, q, k, v);
  at::Tensor out = at::empty_like(q), lse = at::empty({batch, heads, tokens});
  at::Tensor dout = at::randn({batch, tokens, heads, size}), dq = at::empty_like(q);
  std::vector<at::Tensor> dk = {at::zeros_like(k)}, dv = {at::zeros_like(v)};
  const double attention = bench.median([&] { attention_forward(q, {{k}, {v}}, out, lse); });
  parts.push_back({"attention", attention, bench.median([&] {
                     attention_backward(dout, q, {{k}, {v}}, out, lse, dq, dk, dv);
                   })});
  // For comparison, and not part of a layer: torch's kernel on the same tensors.
  const at::Tensor q_BHTS = q.transpose(1, 2), dout_BHTS = dout.transpose(1, 2);
  const double torch_forward = bench.median(
      [&] { at::_scaled_dot_product_flash_attention_for_cpu(q_BHTS, k, v, 0.0, true); });
  parts.push_back({kTorchAttention, torch_forward, bench.median([&] {
                     at::_scaled_dot_product_flash_attention_for_cpu_backward(
                         dout_BHTS, q_BHTS, k, v, out.transpose(1, 2), lse, 0.0, true);
                   })});
  return parts;
}

void report_layer(const Bench& bench, ModelConfig config, std::int64_t batch, std::int64_t tokens) {
  const std::int64_t rows = batch * tokens;
  const StageLayers layers{0, 1, false, false};
  const StageFlops flops = stage_flops(config, layers, batch, tokens);
  const double attention = 2.0 * static_cast<double>(rows * config.hidden_size * tokens);
  const double linear = flops.backward_weight;
  const Gemms gemms = layer_gemms(bench, config, rows);
  const double gemm_rate = 3 * linear / (gemms.forward + gemms.backward) * 1e-9;
  fmt::print("layer: hidden {}, intermediate {}, heads {}/{}, {} x {} tokens, fp32, one thread\n",
             config.hidden_size, config.intermediate_size, config.num_attention_heads,
             config.num_key_value_heads, batch, tokens);
  fmt::print("  GEMM of its shapes   forward {:6.1f} GF/s   backward {:6.1f} GF/s\n",
             linear / gemms.forward * 1e-9, 2 * linear / gemms.backward * 1e-9);

  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    config.recompute = mode;
    Stage stage(config, layers, at::kCPU, 1);
    KeyValueContext context;
    StageSaved saved;
    const KeepTensor keep = [](const at::Tensor&) {};
    const StageInput input{.x_BTD = at::randn({batch, tokens, config.hidden_size})};
    const at::Tensor dy = at::randn({batch, tokens, config.hidden_size});
    const double forward = bench.median([&] { stage.forward(input, context, saved, keep); });
    const double both = bench.median([&] {
      stage.forward(input, context, saved, keep);
      stage.backward(dy, {}, context, saved, keep, nullptr);
    });
    // Attention counted as forward 1, backward 2: what the mathematics needs.
    const double useful = 3 * (linear + attention);
    const char* names[] = {"none", "selective", "full"};
    fmt::print(
        "  recompute {:9}  forward {:6.2f} ms  backward {:6.2f} ms  {:6.1f} GF/s, {:4.1f} % "
        "of its GEMM rate\n",
        names[static_cast<int>(mode)], forward * 1e3, (both - forward) * 1e3, useful / both * 1e-9,
        useful / both * 1e-7 / gemm_rate);
  }
  fmt::print("  {:12} {:>11} {:>11}\n", "part", "forward", "backward");
  std::vector<Part> parts = layer_parts(bench, config, batch, tokens);
  parts.push_back({"GEMM", gemms.forward, gemms.backward});
  double forward = 0.0, backward = 0.0;
  for (const Part& part : parts) {
    if (part.name == kTorchAttention) continue;
    forward += part.forward;
    backward += part.backward;
  }
  for (const Part& part : parts) {
    fmt::print("  {:12} {:6.2f} ms {:3.0f} % {:6.2f} ms {:3.0f} %", part.name, part.forward * 1e3,
               100 * part.forward / forward, part.backward * 1e3, 100 * part.backward / backward);
    if (part.name == "attention" || part.name == kTorchAttention) {
      fmt::print("   {:5.1f} and {:5.1f} GF/s", attention / part.forward * 1e-9,
                 2.5 * attention / part.backward * 1e-9);
    }
    fmt::print("\n");
  }
}

void report_head(const Bench& bench, const ModelConfig& config, std::int64_t rows) {
  const double flops = 6.0 * static_cast<double>(rows * config.hidden_size * config.vocab_size);
  const at::Tensor weight = at::randn({config.vocab_size, config.hidden_size});
  const at::Tensor x = at::randn({rows, config.hidden_size});
  at::Tensor logits = at::empty({rows, config.vocab_size}), dx = at::empty_like(x);
  at::Tensor gradient = at::zeros_like(weight);
  const double logits_seconds = bench.median([&] { at::mm_out(logits, x, weight.t()); });
  const double dx_seconds = bench.median([&] { at::mm_out(dx, logits, weight); });
  const double weight_seconds =
      bench.median([&] { at::addmm_out(gradient, gradient, logits.t(), x); });
  const double third = flops / 3 * 1e-9;
  fmt::print("output layer: vocabulary {}, {} rows\n", config.vocab_size, rows);
  fmt::print(
      "  whole GEMMs          logits {:6.1f}  dx {:6.1f}  dW {:6.1f} GF/s, together {:6.1f}\n",
      third / logits_seconds, third / dx_seconds, third / weight_seconds,
      3 * third / (logits_seconds + dx_seconds + weight_seconds));
  Stage stage(config, {0, 0, false, true}, at::kCPU, 1);
  KeyValueContext context;
  StageSaved saved;
  const KeepTensor keep = [](const at::Tensor&) {};
  const at::Tensor targets =
      at::randint(config.vocab_size, {1, rows}, at::TensorOptions().dtype(at::kLong));
  const double seconds = bench.median([&] {
    stage.forward({.x_BTD = x.unsqueeze(0), .targets_BT = targets}, context, saved, keep);
    stage.backward({}, {}, context, saved, keep, nullptr);
  });
  fmt::print("  loss and gradients, tiles of {} rows: {:6.2f} ms  {:6.1f} GF/s\n",
             loss_tile_rows(config, rows), seconds * 1e3, flops / seconds * 1e-9);
}

// One of two shards of the output layer, as parallel-2 runs it.
void report_shard(const Bench& bench, const ModelConfig& config, std::int64_t rows) {
  VocabLayers layers(config, /*num_ranks=*/2, /*rank=*/0, at::kCPU, 1);
  OutputShard& shard = layers.output();
  const double product =
      2.0 * static_cast<double>(rows * config.hidden_size * shard.rows().count) * 1e-9;
  const at::Tensor x = at::randn({rows, config.hidden_size});
  const at::Tensor targets =
      at::randint(config.vocab_size, {rows}, at::TensorOptions().dtype(at::kLong));
  const KeepTensor keep = [](const at::Tensor&) {};
  fmt::print("output layer, one of two shards: {} columns, tiles of {}\n", shard.rows().count,
             vocab_tile_columns(shard.rows().count));
  for (const bool kept : {true, false}) {
    LogitsSaved saved;
    at::Tensor gradient, statistics;
    const double forward = bench.median([&] {
      saved = {};
      statistics = shard.forward(x.clone(), targets, {}, kept, &saved, &gradient, keep);
    });
    const TokenLoss loss = combine_statistics({statistics, statistics}, {}, config.vocab_size, {});
    const double both = bench.median([&] {
      saved = {};
      shard.forward(x.clone(), targets, {}, kept, &saved, &gradient, keep);
      shard.backward(loss, targets, {}, saved, nullptr);
    });
    fmt::print("  {:24} S {:6.2f} ms  {:6.1f} GF/s   T {:6.2f} ms  {:6.1f} GF/s\n",
               kept ? "probabilities kept" : "recomputed", forward * 1e3, 2 * product / forward,
               (both - forward) * 1e3, (kept ? 1 : 2) * product / (both - forward));
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::ModelConfig config = {.vocab_size = 32000,
                                .hidden_size = 512,
                                .intermediate_size = 1408,
                                .num_hidden_layers = 1,
                                .num_attention_heads = 8,
                                .num_key_value_heads = 4};
  std::int64_t tokens = 512, batch = 1;
  sluice::Bench bench;
  bool head = true;
  CLI::App app("Speed of the model's layers on one thread. Example: bench_layer --tokens 2048");
  app.add_option("--tokens", tokens, "Tokens of a sequence")->capture_default_str();
  app.add_option("--batch", batch, "Sequences of a microbatch")->capture_default_str();
  app.add_option("--hidden", config.hidden_size, "Hidden size")->capture_default_str();
  app.add_option("--intermediate", config.intermediate_size)->capture_default_str();
  app.add_option("--heads", config.num_attention_heads)->capture_default_str();
  app.add_option("--kv-heads", config.num_key_value_heads)->capture_default_str();
  app.add_option("--vocab", config.vocab_size)->capture_default_str();
  app.add_option("--repeats", bench.repeats, "Calls whose median is shown")->capture_default_str();
  app.add_flag("!--no-head", head, "Leave the output layer out");
  CLI11_PARSE(app, argc, argv);
  sluice::check_config(config);
  at::set_num_threads(1);
  const at::AutoDispatchBelowADInplaceOrView guard;
  sluice::report_layer(bench, config, batch, tokens);
  if (!head) return 0;
  sluice::report_head(bench, config, batch * tokens);
  sluice::report_shard(bench, config, batch * tokens);
}
