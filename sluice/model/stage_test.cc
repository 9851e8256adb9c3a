// Stages against the whole model under autograd: every split, every recompute mode, every slicing.
#include "sluice/model/stage.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/model/reference.h"

namespace sluice {
namespace {

// As every rank thread does: no OpenMP region is entered.
const bool kOneThread = (at::set_num_threads(1), true);

struct Case {
  std::string name;
  ModelConfig config;
  std::vector<int> layers_per_stage;
  std::int64_t batch = 2, tokens = 12;
  int num_slices = 1;
  LossOptions loss{.scale = 0.125};
  bool ignore_some = false;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

ModelConfig small_config() {
  return {.vocab_size = 40,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .initializer_range = 0.3,
          .dtype = DType::kFloat64};
}

at::Tensor random_ids(std::int64_t batch, std::int64_t tokens, std::int64_t vocab,
                      std::int64_t salt) {
  at::Tensor ids = at::empty({batch, tokens}, at::TensorOptions().dtype(at::kLong));
  auto* data = ids.mutable_data_ptr<std::int64_t>();
  std::uint64_t state = 88172645463325252ULL + static_cast<std::uint64_t>(salt);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    data[i] = static_cast<std::int64_t>(state % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

struct Batch {
  at::Tensor tokens_BT, targets_BT;
};

Batch make_batch(const Case& c, std::int64_t salt) {
  Batch batch{random_ids(c.batch, c.tokens, c.config.vocab_size, salt),
              random_ids(c.batch, c.tokens, c.config.vocab_size, salt + 1)};
  if (c.ignore_some) batch.targets_BT.view(-1).slice(0, 0, c.batch * c.tokens, 3).fill_(-100);
  return batch;
}

enum class Split { kBackward, kInputThenWeight };

// All stages of a model, run one after the other.
class Chain {
 public:
  explicit Chain(const Case& c) : case_(c) {
    int first = 0;
    const std::size_t num_stages = c.layers_per_stage.size();
    for (std::size_t i = 0; i < num_stages; ++i) {
      const StageLayers layers{first, c.layers_per_stage[i], i == 0, i + 1 == num_stages};
      stages_.emplace_back(c.config, layers, at::kCPU, 7);
      first += layers.num_layers;
    }
  }

  LossSum step(const Batch& batch, Split split) {
    const std::int64_t length = case_.tokens / case_.num_slices;
    std::vector<KeyValueContext> contexts(stages_.size());
    for (auto& context : contexts) context.num_slices = case_.num_slices;
    std::vector<std::vector<StageSaved>> saved(
        stages_.size(), std::vector<StageSaved>(static_cast<std::size_t>(case_.num_slices)));
    const KeepTensor keep = [](const at::Tensor&) {};
    for (int slice = 0; slice < case_.num_slices; ++slice) {
      at::Tensor x;
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        StageInput input{.x_BTD = x, .first_position = slice * length, .slice = slice};
        if (stages_[i].layers().has_embedding) {
          input.tokens_BT = batch.tokens_BT.narrow(1, slice * length, length);
        }
        if (stages_[i].layers().has_head) {
          input.targets_BT = batch.targets_BT.narrow(1, slice * length, length);
        }
        x = stages_[i].forward(input, contexts[i], saved[i][static_cast<std::size_t>(slice)], keep);
      }
    }
    LossSum total;
    for (int slice = case_.num_slices; slice-- > 0;) {
      at::Tensor dy;
      for (std::size_t i = stages_.size(); i-- > 0;) {
        StageSaved& kept = saved[i][static_cast<std::size_t>(slice)];
        LossSum sum;
        if (split == Split::kBackward) {
          dy = stages_[i].backward(dy, case_.loss, contexts[i], kept, keep, &sum);
        } else {
          dy = stages_[i].backward_input(dy, case_.loss, contexts[i], kept, keep, &sum);
          stages_[i].backward_weight(kept);
        }
        total.cross_entropy += sum.cross_entropy;
        total.z_loss += sum.z_loss;
        total.num_targets += sum.num_targets;
      }
    }
    for (const KeyValueContext& context : contexts) {
      for (const LayerKeyValues& layer : context.layers) {
        for (const auto* list : {&layer.k, &layer.v, &layer.dk, &layer.dv}) {
          for (const at::Tensor& tensor : *list) EXPECT_FALSE(tensor.defined());
        }
      }
    }
    return total;
  }

  LossSum evaluate(const Batch& batch) {
    const std::int64_t length = case_.tokens / case_.num_slices;
    std::vector<KeyValueContext> contexts(stages_.size());
    for (auto& context : contexts) context.num_slices = case_.num_slices;
    LossSum total;
    for (int slice = 0; slice < case_.num_slices; ++slice) {
      at::Tensor x;
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        const StageInput input{.tokens_BT = batch.tokens_BT.narrow(1, slice * length, length),
                               .x_BTD = x,
                               .targets_BT = batch.targets_BT.narrow(1, slice * length, length),
                               .first_position = slice * length,
                               .slice = slice};
        LossSum sum;
        x = stages_[i].evaluate(input, contexts[i], case_.loss, &sum);
        total.cross_entropy += sum.cross_entropy;
        total.z_loss += sum.z_loss;
        total.num_targets += sum.num_targets;
      }
    }
    return total;
  }

  // By name; the gradient of a tied parameter is added to the one it is tied to.
  NamedTensors gradients() {
    NamedTensors result;
    for (Stage& stage : stages_) {
      for (const Parameter& parameter : stage.parameters()) {
        const std::string& name =
            parameter.spec.tied_to.empty() ? parameter.spec.name : parameter.spec.tied_to;
        at::Tensor& sum = result[name];
        sum = sum.defined() ? sum + parameter.gradient : parameter.gradient.clone();
      }
    }
    return result;
  }

  NamedTensors values() {
    NamedTensors result;
    for (Stage& stage : stages_) {
      for (const Parameter& parameter : stage.parameters()) {
        if (parameter.spec.tied_to.empty()) result[parameter.spec.name] = parameter.value;
      }
    }
    return result;
  }

  std::vector<Stage>& stages() { return stages_; }

 private:
  Case case_;
  std::vector<Stage> stages_;
};

double relative_error(const at::Tensor& value, const at::Tensor& reference) {
  const at::Tensor wide = reference.to(at::kDouble);
  const double scale = std::max(wide.abs().max().item<double>(), 1e-30);
  return (value.to(at::kDouble) - wide).abs().max().item<double>() / scale;
}

void expect_agreement(const Case& c, double tolerance) {
  const Batch batch = make_batch(c, 1);
  Chain chain(c);
  LossSum loss;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    loss = chain.step(batch, Split::kBackward);
  }
  const ReferenceResult reference =
      reference_step(c.config, chain.values(), batch.tokens_BT, batch.targets_BT, c.loss);
  EXPECT_EQ(loss.num_targets, reference.loss.num_targets);
  EXPECT_NEAR(loss.cross_entropy / reference.loss.cross_entropy, 1.0, tolerance);
  EXPECT_NEAR(loss.z_loss, reference.loss.z_loss, tolerance * (1.0 + reference.loss.z_loss));
  const NamedTensors gradients = chain.gradients();
  ASSERT_EQ(gradients.size(), reference.gradients.size());
  for (const auto& [name, gradient] : gradients) {
    EXPECT_LE(relative_error(gradient, reference.gradients.at(name)), tolerance) << name;
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](std::string name, auto change) {
    Case c{.name = std::move(name), .config = small_config(), .layers_per_stage = {3}};
    change(c);
    cases.push_back(std::move(c));
  };
  for (const auto& layers : std::vector<std::vector<int>>{
           {3}, {1, 2}, {2, 1}, {0, 3}, {3, 0}, {1, 1, 1}, {0, 2, 1}, {0, 1, 0, 2, 0}}) {
    std::string name = "layers";
    for (const int count : layers) name += fmt::format("_{}", count);
    add(name, [&](Case& c) { c.layers_per_stage = layers; });
  }
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    for (const bool tied : {false, true}) {
      add(fmt::format("kvheads_{}_{}", kv_heads, tied ? "tied" : "untied"), [&](Case& c) {
        c.config.num_key_value_heads = kv_heads;
        c.config.tie_word_embeddings = tied;
        c.layers_per_stage = {2, 1};
      });
    }
  }
  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const int slices : {1, 2, 3, 4}) {
      for (const std::int64_t batch : {1, 2, 3}) {
        add(fmt::format("recompute_{}_slices_{}_batch_{}", static_cast<int>(mode), slices, batch),
            [&](Case& c) {
              c.config.recompute = mode;
              c.num_slices = slices;
              c.batch = batch;
              c.layers_per_stage = {1, 2};
            });
      }
    }
  }
  add("ignore_index", [](Case& c) { c.ignore_some = true; });
  add("z_loss", [](Case& c) { c.loss.z_loss = 0.01; });
  add("ignore_index_z_loss_slices", [](Case& c) {
    c.ignore_some = true;
    c.loss.z_loss = 0.01;
    c.num_slices = 3;
    c.config.tie_word_embeddings = true;
  });
  add("several_loss_tiles", [](Case& c) {
    c.config.vocab_size = 70000;
    c.config.hidden_size = 8;
    c.config.num_hidden_layers = 1;
    c.layers_per_stage = {1};
    c.tokens = 60;
    c.ignore_some = true;
    c.loss.z_loss = 0.001;
  });
  return cases;
}

class Agreement : public testing::TestWithParam<Case> {};

TEST_P(Agreement, WithAutogradInDoublePrecision) { expect_agreement(GetParam(), 1e-12); }

TEST_P(Agreement, WithAutogradInSinglePrecision) {
  Case c = GetParam();
  c.config.dtype = DType::kFloat32;
  expect_agreement(c, 1e-5);
}

TEST_P(Agreement, OfBackwardWithInputThenWeightIsBitForBit) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Case& c = GetParam();
  Chain whole(c), split(c);
  for (std::int64_t microbatch = 0; microbatch < 2; ++microbatch) {
    const Batch batch = make_batch(c, 10 * microbatch);
    const LossSum a = whole.step(batch, Split::kBackward);
    const LossSum b = split.step(batch, Split::kInputThenWeight);
    EXPECT_EQ(a.cross_entropy, b.cross_entropy);
  }
  const NamedTensors expected = whole.gradients(), got = split.gradients();
  for (const auto& [name, gradient] : expected) EXPECT_TRUE(gradient.equal(got.at(name))) << name;
}

TEST_P(Agreement, OfEvaluateWithTheTrainingLoss) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Case& c = GetParam();
  Chain chain(c);
  const Batch batch = make_batch(c, 3);
  const LossSum evaluated = chain.evaluate(batch);
  const LossSum trained = chain.step(batch, Split::kBackward);
  // Slices are added up in opposite orders.
  EXPECT_NEAR(evaluated.cross_entropy / trained.cross_entropy, 1.0, 1e-14);
  EXPECT_NEAR(evaluated.z_loss, trained.z_loss, 1e-14 * (1.0 + trained.z_loss));
  EXPECT_EQ(evaluated.num_targets, trained.num_targets);
}

INSTANTIATE_TEST_SUITE_P(Stage, Agreement, testing::ValuesIn(all_cases()),
                         [](const auto& c) { return c.param.name; });

TEST(Stage, GivesTheSameBitsInEveryRecomputeModeAndSplit) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Case c{.name = "base", .config = small_config(), .layers_per_stage = {3}};
  c.config.dtype = DType::kFloat32;
  Chain base(c);
  const Batch batch = make_batch(c, 5);
  base.step(batch, Split::kBackward);
  const NamedTensors expected = base.gradients();
  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const auto& layers : std::vector<std::vector<int>>{{3}, {1, 1, 1}, {0, 3}, {2, 1}}) {
      Case other = c;
      other.config.recompute = mode;
      other.layers_per_stage = layers;
      Chain chain(other);
      chain.step(batch, Split::kInputThenWeight);
      for (const auto& [name, gradient] : chain.gradients()) {
        EXPECT_TRUE(gradient.equal(expected.at(name))) << name << static_cast<int>(mode);
      }
    }
  }
}

TEST(Stage, RefusesIdsOutsideTheVocabulary) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Case c{.name = "ids", .config = small_config(), .layers_per_stage = {3}};
  Chain chain(c);
  const auto refusal = [&](const Batch& batch) -> std::string {
    try {
      chain.step(batch, Split::kBackward);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  Batch batch = make_batch(c, 1);
  EXPECT_EQ(refusal(batch), "accepted");
  batch.tokens_BT[1][2] = 40;
  EXPECT_EQ(refusal(batch),
            "token 40 is outside the vocabulary: model.vocab_size is 40, so ids run from 0 to 39");
  batch = make_batch(c, 1);
  batch.targets_BT[0][0] = -7;
  EXPECT_EQ(refusal(batch),
            "target -7 is outside the vocabulary: model.vocab_size is 40, so ids run from 0 to 39");
}

TEST(Stage, ContinuesFromKeysAndValuesAsFromTheWholeText) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Case c{.name = "generate", .config = small_config(), .layers_per_stage = {3}};
  for (const DType dtype : {DType::kFloat64, DType::kBFloat16}) {
    c.config.dtype = dtype;
    Stage stage(c.config, {0, 3, true, true}, at::kCPU, 7);
    const at::Tensor tokens = random_ids(1, 11, 40, 5);
    KeyValueContext growing{.num_slices = 2};
    for (std::int64_t length = 7; length <= 11; ++length) {
      const bool first = length == 7;
      const StageInput next{
          .tokens_BT = first ? tokens.narrow(1, 0, 7) : tokens.narrow(1, length - 1, 1),
          .first_position = first ? 0 : length - 1,
          .slice = first ? 0 : 1};
      const at::Tensor got = stage.last_logits(next, growing);
      if (!first) join_first_slices(growing);
      KeyValueContext none;
      const at::Tensor expected =
          stage.last_logits({.tokens_BT = tokens.narrow(1, 0, length)}, none);
      EXPECT_EQ(got.sizes(), at::IntArrayRef({1, 40}));
      EXPECT_LE(relative_error(got, expected), dtype == DType::kFloat64 ? 1e-13 : 0.05);
    }
  }
}

TEST(Stage, TrainsInBFloat16CloseToTheDoubleModel) {
  Case c{.name = "bf16", .config = small_config(), .layers_per_stage = {1, 2}};
  for (const int slices : {1, 2}) {
    c.num_slices = slices;
    c.config.dtype = DType::kBFloat16;
    const Batch batch = make_batch(c, 1);
    Chain chain(c);
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      chain.step(batch, Split::kBackward);
    }
    NamedTensors values = chain.values();
    for (auto& [name, value] : values) value = value.to(at::kDouble);
    const ReferenceResult reference =
        reference_step(c.config, values, batch.tokens_BT, batch.targets_BT, c.loss);
    for (const auto& [name, gradient] : chain.gradients()) {
      EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
      EXPECT_LE(relative_error(gradient, reference.gradients.at(name)), 0.15) << name;
    }
  }
}

}  // namespace
}  // namespace sluice
