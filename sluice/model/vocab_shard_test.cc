// The sharded vocabulary layers against a dense output layer under autograd, and against the naive
// form with three barriers.
#include "sluice/model/vocab_shard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/model/dtype.h"
#include "sluice/model/vocab_layers.h"

namespace sluice {
namespace {

const bool kOneThread = (at::set_num_threads(1), true);
const KeepTensor kKeepNothing = [](const at::Tensor&) {};

ModelConfig config_of(std::int64_t vocab, std::int64_t hidden, DType dtype) {
  return {.vocab_size = vocab,
          .hidden_size = hidden,
          .intermediate_size = 8,
          .num_hidden_layers = 1,
          .num_attention_heads = 2,
          .num_key_value_heads = 2,
          .initializer_range = 0.3,
          .dtype = dtype};
}

/// Hidden states, targets (all of them valid) and perhaps weights of N tokens.
struct Tokens {
  at::Tensor x_ND, targets_N, weights_N;
};

/// What a loss gives: the same from shards, dense, and naive.
struct Outcome {
  LossSum loss;
  at::Tensor dx_ND, dw_VD;
};

at::Generator generator_of(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

Tokens random_tokens(const ModelConfig& config, std::int64_t count, double scale,
                     std::uint64_t seed = 3) {
  auto generator = generator_of(seed);
  const auto type = value_type(config.dtype);
  return {(at::randn({count, config.hidden_size}, generator, at::kDouble) * scale).to(type),
          at::randint(0, config.vocab_size, {count}, generator, at::kLong),
          {}};
}

std::vector<std::unique_ptr<VocabLayers>> shards_of(const ModelConfig& config, int num_ranks) {
  std::vector<std::unique_ptr<VocabLayers>> shards;
  for (int rank = 0; rank < num_ranks; ++rank) {
    shards.push_back(std::make_unique<VocabLayers>(config, num_ranks, rank, at::kCPU, 7));
  }
  return shards;
}

at::Tensor whole(const std::vector<std::unique_ptr<VocabLayers>>& shards, std::size_t parameter,
                 bool gradient) {
  std::vector<at::Tensor> parts;
  for (const auto& shard : shards) {
    const Parameter& part = shard->parameters()[parameter];
    parts.push_back(gradient ? part.gradient : part.value);
  }
  return at::cat(parts);
}

enum class Form { kOneBarrier, kTwoBarriers };

Outcome run_shards(const std::vector<std::unique_ptr<VocabLayers>>& shards, const Tokens& tokens,
                   const LossOptions& options, Form form, bool keep_probabilities) {
  std::vector<at::Tensor> statistics, gradients(shards.size());
  std::vector<LogitsSaved> saved(shards.size());
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    statistics.push_back(shards[rank]->output().forward(
        tokens.x_ND.clone(), tokens.targets_N, options, keep_probabilities, &saved[rank],
        form == Form::kOneBarrier ? &gradients[rank] : nullptr, kKeepNothing));
  }
  const std::int64_t vocab = shards.front()->config().vocab_size;
  const TokenLoss loss = combine_statistics(statistics, tokens.weights_N, vocab, options);
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    shards[rank]->output().backward(loss, tokens.targets_N, options, saved[rank],
                                    form == Form::kTwoBarriers ? &gradients[rank] : nullptr);
    EXPECT_FALSE(saved[rank].x_ND.defined());
  }
  Outcome outcome{.loss = loss.sum, .dx_ND = {}, .dw_VD = whole(shards, 1, true)};
  if (form == Form::kOneBarrier) {
    outcome.dx_ND = join_hidden_gradient(loss, tokens.targets_N, vocab, options, gradients);
  } else {
    outcome.dx_ND = gradients.front();
    for (std::size_t rank = 1; rank < gradients.size(); ++rank) outcome.dx_ND += gradients[rank];
  }
  return outcome;
}

/// The whole matrix at once, in fp64, under autograd.
Outcome run_dense(const at::Tensor& weight_VD, const Tokens& tokens, const LossOptions& options) {
  c10::AutoGradMode enable(true);
  const at::Tensor x = tokens.x_ND.to(at::kDouble).detach().clone().set_requires_grad(true);
  const at::Tensor w = weight_VD.to(at::kDouble).detach().clone().set_requires_grad(true);
  at::Tensor logits = x.mm(w.t());
  if (options.logit_softcap > 0.0) {
    logits = at::tanh(logits / options.logit_softcap) * options.logit_softcap;
  }
  const at::Tensor lse = at::logsumexp(logits, {-1});
  const at::Tensor label = logits.gather(-1, tokens.targets_N.unsqueeze(-1)).squeeze(-1);
  const at::Tensor weights = tokens.weights_N.defined() ? tokens.weights_N.to(at::kDouble)
                                                        : at::full({x.size(0)}, 1.0, at::kDouble);
  const double smoothing = options.label_smoothing;
  const at::Tensor cross_entropy =
      ((lse - (1.0 - smoothing) * label - smoothing * logits.mean(-1)) * weights).sum();
  const at::Tensor z_loss = options.z_loss * (lse.square() * weights).sum();
  const auto gradients = torch::autograd::grad({options.scale * (cross_entropy + z_loss)}, {x, w});
  return {
      {cross_entropy.item<double>(), z_loss.item<double>(), x.size(0)}, gradients[0], gradients[1]};
}

double error(const at::Tensor& got, const at::Tensor& wanted) {
  const double scale = std::max(wanted.abs().max().item<double>(), 1e-300);
  return (got.to(at::kDouble) - wanted).abs().max().item<double>() / scale;
}

double frobenius_error(const at::Tensor& got, const at::Tensor& wanted) {
  return (got.to(at::kDouble) - wanted).norm().item<double>() / wanted.norm().item<double>();
}

void expect_close(const Outcome& got, const Outcome& wanted, double bound) {
  EXPECT_NEAR(got.loss.cross_entropy, wanted.loss.cross_entropy,
              bound * std::max(1.0, std::abs(wanted.loss.cross_entropy)));
  EXPECT_NEAR(got.loss.z_loss, wanted.loss.z_loss, bound * std::max(1.0, wanted.loss.z_loss));
  EXPECT_EQ(got.loss.num_targets, wanted.loss.num_targets);
  EXPECT_LE(error(got.dx_ND, wanted.dx_ND), bound);
  EXPECT_LE(error(got.dw_VD, wanted.dw_VD), bound);
}

// Every form and rank count against the dense layer.
void check(const ModelConfig& config, const Tokens& tokens, const LossOptions& options,
           double bound = 1e-12) {
  for (const int num_ranks : {1, 2, 3, 8}) {
    for (const Form form : {Form::kOneBarrier, Form::kTwoBarriers}) {
      for (const bool keep : {true, false}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} barriers, {}", num_ranks,
                                 form == Form::kOneBarrier ? 1 : 2,
                                 keep ? "probabilities kept" : "recomputed"));
        const auto shards = shards_of(config, num_ranks);
        const Outcome got = run_shards(shards, tokens, options, form, keep);
        expect_close(got, run_dense(whole(shards, 1, false), tokens, options), bound);
      }
    }
  }
}

TEST(VocabShard, AgreesWithADenseLayerWhateverDividesTheVocabulary) {
  for (const std::int64_t vocab : {8, 37, 4099}) {  // the last one has several tiles on one rank
    const ModelConfig config = config_of(vocab, 12, DType::kFloat64);
    check(config, random_tokens(config, 9, 1.0), {.scale = 0.25});
  }
}

TEST(VocabShard, WithoutARowTakesPartAndAddsNothing) {
  // 3 rows on 8 ranks.
  const ModelConfig config = config_of(3, 12, DType::kFloat64);
  check(config, random_tokens(config, 9, 1.0), {.scale = 0.25});
}

TEST(VocabShard, AgreesWhereLabelsStandOnEdges) {
  const ModelConfig config = config_of(37, 12, DType::kFloat64);
  Tokens tokens = random_tokens(config, 16, 1.0);
  for (int i = 0; i < 16; ++i) {
    const VocabRows rows = vocab_rows(37, 8, i / 2);
    tokens.targets_N[i] = i % 2 == 0 ? rows.first : rows.first + rows.count - 1;
  }
  check(config, tokens, {.scale = 0.25});
}

TEST(VocabShard, WithoutTokensRunsEveryPass) {
  const ModelConfig config = config_of(37, 12, DType::kFloat64);
  for (const bool keep : {true, false}) {
    for (const Form form : {Form::kOneBarrier, Form::kTwoBarriers}) {
      const auto shards = shards_of(config, 3);
      const Outcome got = run_shards(shards, random_tokens(config, 0, 1.0), {}, form, keep);
      EXPECT_EQ(got.loss.num_targets, 0);
      EXPECT_EQ(got.loss.cross_entropy, 0.0);
      EXPECT_EQ(got.dx_ND.size(0), 0);
      EXPECT_EQ(got.dw_VD.abs().max().item<double>(), 0.0);
    }
  }
}

TEST(VocabShard, StaysFiniteAndExactForHugeLogits) {
  const ModelConfig config = config_of(37, 12, DType::kFloat64);
  const Tokens tokens = random_tokens(config, 9, 1e4);
  check(config, tokens, {.scale = 0.25});
  const auto shards = shards_of(config, 3);
  const Outcome got = run_shards(shards, tokens, {}, Form::kOneBarrier, true);
  EXPECT_TRUE(got.dx_ND.isfinite().all().item<bool>());
  EXPECT_TRUE(got.dw_VD.isfinite().all().item<bool>());
}

TEST(VocabShard, AgreesForConfidentTokens) {
  const ModelConfig config = config_of(37, 12, DType::kFloat64);
  Tokens tokens = random_tokens(config, 9, 1.0);
  const auto shards = shards_of(config, 1);
  // Along the label's row: its probability is nearly 1.
  tokens.x_ND = whole(shards, 1, false).index_select(0, tokens.targets_N) * 12.0;
  const Outcome dense = run_dense(whole(shards, 1, false), tokens, {});
  ASSERT_LT(dense.loss.cross_entropy / 9.0, 0.2);
  check(config, tokens, {.scale = 0.25});
}

TEST(VocabShard, HasZLossLabelSmoothingSoftcapAndWeights) {
  const ModelConfig config = config_of(37, 12, DType::kFloat64);
  Tokens tokens = random_tokens(config, 9, 1.0);
  check(config, tokens, {.scale = 0.25, .z_loss = 0.1});
  check(config, tokens, {.scale = 0.25, .label_smoothing = 0.1});
  check(config, tokens, {.scale = 0.25, .z_loss = 0.1, .logit_softcap = 1.5});
  auto generator = generator_of(5);
  tokens.weights_N = at::randn({9}, generator, at::kDouble).square();
  tokens.weights_N[3] = 0.0;
  check(config, tokens, {.scale = 0.25, .z_loss = 0.1, .label_smoothing = 0.2});
}

TEST(VocabShard, RefusesSmoothingUnderASoftcapAndTargetsOutside) {
  const ModelConfig config = config_of(37, 12, DType::kFloat64);
  Tokens tokens = random_tokens(config, 2, 1.0);
  const auto shards = shards_of(config, 2);
  EXPECT_THROW(run_shards(shards, tokens, {.label_smoothing = 0.1, .logit_softcap = 5.0},
                          Form::kOneBarrier, true),
               InvalidArgument);
  tokens.targets_N[1] = 37;
  EXPECT_THROW(run_shards(shards, tokens, {}, Form::kOneBarrier, true), InvalidArgument);
}

TEST(VocabShard, AgreesInSinglePrecision) {
  const ModelConfig config = config_of(4099, 32, DType::kFloat32);
  check(config, random_tokens(config, 33, 1.0), {.scale = 0.25}, 1e-5);
}

// alpha A - B with A rounded to 16 bits before the label is taken off: the published form.
at::Tensor published_gradient(const at::Tensor& weight_VD, const Tokens& tokens) {
  const at::Tensor logits = tokens.x_ND.to(at::kFloat).mm(weight_VD.to(at::kFloat).t());
  const at::Tensor p = at::softmax(logits, -1).to(at::kBFloat16);
  const at::Tensor a = p.mm(weight_VD).to(at::kFloat);
  return a - weight_VD.index_select(0, tokens.targets_N).to(at::kFloat);
}

// Storage in bf16, mean probability of the label about 0.98.
TEST(VocabShard, LosesNothingToCancellationWhenTheModelIsConfident) {
  const ModelConfig config = config_of(1024, 64, DType::kBFloat16);
  const auto shards = shards_of(config, 8);
  const at::Tensor weight_VD = whole(shards, 1, false);
  Tokens tokens = random_tokens(config, 256, 0.3);
  tokens.x_ND = (tokens.x_ND + weight_VD.index_select(0, tokens.targets_N) * 2.5).to(at::kBFloat16);
  const Outcome dense = run_dense(weight_VD, tokens, {});
  const double mean_probability =
      at::softmax(tokens.x_ND.to(at::kDouble).mm(weight_VD.to(at::kDouble).t()), -1)
          .gather(-1, tokens.targets_N.unsqueeze(-1))
          .mean()
          .item<double>();
  EXPECT_NEAR(mean_probability, 0.98, 0.015);
  for (const Form form : {Form::kOneBarrier, Form::kTwoBarriers}) {
    for (const bool keep : {true, false}) {
      const auto fresh = shards_of(config, 8);
      const Outcome got = run_shards(fresh, tokens, {}, form, keep);
      EXPECT_LT(frobenius_error(got.dx_ND, dense.dx_ND), 2e-3) << keep;
    }
  }
  EXPECT_GT(frobenius_error(published_gradient(weight_VD, tokens), dense.dx_ND), 1e-2);
}

// Three barriers (maximum, sum, gradient): section 4 of the paper before its reordering.
TEST(VocabShard, AgreesWithTheNaiveFormOfThreeBarriers) {
  const ModelConfig config = config_of(37, 12, DType::kFloat64);
  const Tokens tokens = random_tokens(config, 9, 1.0);
  const auto shards = shards_of(config, 3);
  const LossOptions options{.scale = 0.25};
  std::vector<at::Tensor> logits;
  at::Tensor maximum, sum;
  for (const auto& shard : shards) {
    logits.push_back(tokens.x_ND.mm(shard->parameters()[1].value.t()));
    const at::Tensor mine = logits.back().amax(-1);
    maximum = maximum.defined() ? at::maximum(maximum, mine) : mine;
  }
  for (at::Tensor& shard : logits) {
    shard = at::exp(shard - maximum.unsqueeze(-1));
    sum = sum.defined() ? sum + shard.sum(-1) : shard.sum(-1);
  }
  at::Tensor dx_ND = at::zeros_like(tokens.x_ND);
  std::vector<at::Tensor> dw;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    at::Tensor p = logits[rank] / sum.unsqueeze(-1);
    for (std::int64_t i = 0; i < p.size(0); ++i) {
      const auto target = tokens.targets_N[i].item<std::int64_t>();
      const VocabRows& rows = shards[rank]->output().rows();
      if (rows.contains(target)) p[i][target - rows.first] -= 1.0;
    }
    p *= options.scale;
    dx_ND += p.mm(shards[rank]->parameters()[1].value);
    dw.push_back(p.t().mm(tokens.x_ND));
  }
  const Outcome got = run_shards(shards, tokens, options, Form::kOneBarrier, true);
  EXPECT_LE(error(got.dx_ND, dx_ND), 1e-12);
  EXPECT_LE(error(got.dw_VD, at::cat(dw)), 1e-12);
}

TEST(VocabShard, LooksUpAndAddsUpTheBitsOfAWholeEmbedding) {
  const ModelConfig config = config_of(37, 12, DType::kFloat32);
  auto generator = generator_of(9);
  const at::Tensor tokens_R = at::randint(0, 37, {50}, generator, at::kLong);
  const at::Tensor dx_RD = at::randn({50, 12}, generator, at::kFloat);
  const auto one = shards_of(config, 1);
  one[0]->embedding().backward(tokens_R, dx_RD);
  for (const int num_ranks : {2, 5, 37}) {
    const auto shards = shards_of(config, num_ranks);
    EXPECT_TRUE(at::equal(whole(shards, 0, false), whole(one, 0, false)));
    std::vector<at::Tensor> parts;
    for (const auto& shard : shards) {
      parts.push_back(shard->embedding().forward(tokens_R));
      shard->embedding().backward(tokens_R, dx_RD);
    }
    EXPECT_TRUE(at::equal(join_embedding(tokens_R, 37, parts, 12, at::kFloat),
                          whole(one, 0, false).index_select(0, tokens_R)));
    EXPECT_TRUE(at::equal(whole(shards, 0, true), whole(one, 0, true)));
  }
}

TEST(VocabRows, CoverTheVocabularyAndDifferByOneAtMost) {
  for (const std::int64_t vocab : {8, 37, 50257, 128000}) {
    for (const int num_ranks : {1, 2, 3, 7, 8}) {
      std::int64_t next = 0, least = vocab, most = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const VocabRows rows = vocab_rows(vocab, num_ranks, rank);
        EXPECT_EQ(rows.first, next);
        next += rows.count;
        least = std::min(least, rows.count);
        most = std::max(most, rows.count);
        EXPECT_EQ(rank_of_row(vocab, num_ranks, rows.first), rank);
        EXPECT_EQ(rank_of_row(vocab, num_ranks, rows.first + rows.count - 1), rank);
      }
      EXPECT_EQ(next, vocab);
      EXPECT_LE(most - least, 1);
    }
  }
}

}  // namespace
}  // namespace sluice
