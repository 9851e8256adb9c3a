#include "sluice/model/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/model/dtype.h"

namespace sluice {
namespace {

class Reference {
 public:
  Reference(const ModelConfig& config, const NamedTensors& leaves)
      : config_(config), leaves_(leaves) {}

  at::Tensor logits(const at::Tensor& tokens_BT) const {
    at::Tensor x = at::embedding(leaf("model.embed_tokens.weight"), tokens_BT);
    for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.", layer);
      x = x + attention(prefix + "self_attn.", norm(x, prefix + "input_layernorm.weight"));
      x = x + mlp(prefix + "mlp.", norm(x, prefix + "post_attention_layernorm.weight"));
    }
    return linear(norm(x, "model.norm.weight"),
                  config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  }

 private:
  const at::Tensor& leaf(const std::string& name) const {
    const auto found = leaves_.find(name);
    SLUICE_CHECK(found != leaves_.end(), "the reference has no {}", name);
    return found->second;
  }

  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return at::matmul(x, leaf(name).t());
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor wide = x.to(statistics_of(x.scalar_type()));
    const at::Tensor normed =
        wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + config_.rms_norm_eps);
    return leaf(name) * normed.to(x.scalar_type());
  }

  at::Tensor rotate(const at::Tensor& x_BHTS) const {
    const std::int64_t half = x_BHTS.size(-1) / 2;
    const auto options = x_BHTS.options().dtype(at::kDouble);
    const at::Tensor exponents = at::arange(half, options) / static_cast<double>(half);
    const at::Tensor angles =
        at::outer(at::arange(x_BHTS.size(2), options), at::pow(config_.rope_theta, -exponents));
    const at::Tensor both = at::cat({angles, angles}, -1);
    const at::ScalarType type = statistics_of(x_BHTS.scalar_type());
    const at::Tensor rotated =
        at::cat({-x_BHTS.narrow(-1, half, half), x_BHTS.narrow(-1, 0, half)}, -1);
    return (x_BHTS * at::cos(both).to(type) + rotated * at::sin(both).to(type))
        .to(x_BHTS.scalar_type());
  }

  at::Tensor attention(const std::string& prefix, const at::Tensor& x_BTD) const {
    const std::int64_t batch = x_BTD.size(0), tokens = x_BTD.size(1), size = config_.head_dim();
    const std::int64_t groups = config_.num_attention_heads / config_.num_key_value_heads;
    const auto heads_of = [&](const char* projection) {
      return linear(x_BTD, prefix + projection).view({batch, tokens, -1, size}).transpose(1, 2);
    };
    const at::Tensor q = rotate(heads_of("q_proj.weight"));
    const at::Tensor k = rotate(heads_of("k_proj.weight")).repeat_interleave(groups, 1);
    const at::Tensor v = heads_of("v_proj.weight").repeat_interleave(groups, 1);
    const at::Tensor future = at::ones({tokens, tokens}, x_BTD.options().dtype(at::kBool)).triu(1);
    const at::Tensor scores =
        (at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(size)))
            .masked_fill(future, -std::numeric_limits<double>::infinity());
    const at::Tensor out = at::matmul(at::softmax(scores, -1), v);
    return linear(out.transpose(1, 2).reshape({batch, tokens, -1}), prefix + "o_proj.weight");
  }

  at::Tensor mlp(const std::string& prefix, const at::Tensor& x_BTD) const {
    return linear(at::silu(linear(x_BTD, prefix + "gate_proj.weight")) *
                      linear(x_BTD, prefix + "up_proj.weight"),
                  prefix + "down_proj.weight");
  }

  const ModelConfig& config_;
  const NamedTensors& leaves_;
};

}  // namespace

ReferenceResult reference_step(const ModelConfig& config, const NamedTensors& values,
                               const at::Tensor& tokens_BT, const at::Tensor& targets_BT,
                               const LossOptions& options) {
  c10::AutoGradMode enable(true);
  NamedTensors leaves;
  std::vector<at::Tensor> inputs;
  for (const auto& [name, value] : values) {
    leaves[name] = value.detach().clone().set_requires_grad(true);
    inputs.push_back(leaves[name]);
  }
  const at::Tensor logits = Reference(config, leaves).logits(tokens_BT);
  const at::Tensor wide = logits.to(statistics_of(logits.scalar_type()));
  const at::Tensor valid = targets_BT != options.ignore_index;
  const at::Tensor index = at::where(valid, targets_BT, 0).unsqueeze(-1);
  const at::Tensor lse = at::logsumexp(wide, {-1});
  const at::Tensor weight = valid.to(wide.scalar_type());
  const double smoothing = options.label_smoothing;
  const at::Tensor expected =
      (1.0 - smoothing) * wide.gather(-1, index).squeeze(-1) +
      smoothing * wide.mean(at::IntArrayRef({-1}));  // mean logit of the smoothed target
  const at::Tensor cross_entropy = ((lse - expected) * weight).sum();
  const at::Tensor z_loss = options.z_loss * (lse.square() * weight).sum();

  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({options.scale * (cross_entropy + z_loss)}, inputs);
  ReferenceResult result;
  result.loss = {cross_entropy.item<double>(), z_loss.item<double>(),
                 valid.sum().item<std::int64_t>()};
  std::size_t next = 0;
  for (const auto& [name, value] : values) result.gradients[name] = gradients[next++];
  return result;
}

}  // namespace sluice
