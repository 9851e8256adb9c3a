#include "sluice/train/data_parallel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "sluice/comm/local.h"
#include "sluice/program/lower.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/engine.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/schedule/registry.h"
#include "sluice/train/pipeline_step.h"

namespace sluice {
namespace {

constexpr int kMicrobatches = 8;
constexpr std::int64_t kTokens = 6;

ModelConfig small_model(bool tied) {
  ModelConfig config;
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.intermediate_size = 64;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.3;
  config.dtype = DType::kFloat64;
  return config;
}

Layout even_layout(int num_stages) {
  Layout layout;
  for (int stage = 0; stage < num_stages; ++stage) {
    const int count = 8 / num_stages;
    layout.push_back({stage * count, count, stage == 0, stage + 1 == num_stages});
  }
  return layout;
}

/// The microbatches of one pipeline out of `data`.
StepBatch batch_of(int index, int data) {
  StepBatch batch;
  auto generator = at::detail::createCPUGenerator(5);
  for (int i = 0; i < kMicrobatches; ++i) {
    const at::Tensor all = at::randint(0, 64, {1, kTokens + 1}, generator, at::kLong);
    if (i / (kMicrobatches / data) != index) continue;
    batch.tokens_BT.push_back(all.narrow(1, 0, kTokens).contiguous());
    batch.targets_BT.push_back(all.narrow(1, 1, kTokens).contiguous());
  }
  batch.loss.scale = 1.0 / (kMicrobatches * kTokens);
  return batch;
}

struct Outcome {
  NamedTensors gradients;  // whole, put together from the parts
  NamedTensors weights;    // of the first pipeline, after two steps
  std::vector<double> norms;
  std::int64_t optimizer_bytes = 0;  // of all ranks of a pipeline, the largest shards
  bool replicas_agree = true;
};

/// Runs data x ranks rank threads: gradients of the first step, then two steps. `early`: gradients
/// of a stage travel as soon as they are complete.
Outcome run(int data, int ranks, bool tied, const char* schedule = "1f1b", bool early = true) {
  install_ledger_allocator();
  const Program program =
      lower(make_schedule(schedule, {.ranks = ranks, .microbatches = kMicrobatches / data}));
  Outcome outcome;
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(data));
  std::vector<NamedTensors> weights(static_cast<std::size_t>(data));
  std::mutex mutex;
  run_ranks(make_local_transports(data * ranks), [&](Transport& world) {
    const int index = world.rank() / ranks;
    const auto pipeline = world.split(index);
    const auto replicas = world.split(world.rank() % ranks);
    RankModel model(small_model(tied), even_layout(program.num_stages()), program.placement,
                    pipeline->rank(), at::kCPU, /*seed=*/3, {index, data});
    model.spread_tied(*pipeline);
    Engine engine(program, model.stages(), *pipeline, model.ledger());
    engine.run(batch_of(index, data), [&](const std::vector<LossSum>&) {
      model.sum_tied_gradients(*pipeline);
      world.barrier();
      std::vector<Parameter*> parameters;
      for (TrainedParameter& one : model.trained()) parameters.push_back(one.parameter);
      if (data > 1) reduce_gradients(parameters, *replicas);
      const std::lock_guard lock(mutex);
      const LedgerScope outlives_the_model(nullptr, MemoryClass::kWorkspace);
      for (const Parameter* one : parameters) {
        at::Tensor& whole = outcome.gradients[one->spec.name];
        if (!whole.defined()) whole = at::zeros_like(one->gradient);
        whole.add_(one->gradient);  // zero outside of its own part
      }
    });
    world.barrier();
    model.zero_gradients();
    std::size_t num_early = 0;
    for (int step = 1; step <= 2; ++step) {
      const auto optimizer = [&](const std::vector<LossSum>&) {
        const auto update = model.update({world, *pipeline, *replicas}, {}, 1e-3, 0.5, step, {});
        if (world.rank() == 0) outcome.norms.push_back(update.gradient_norm);
      };
      const auto stage_done = [&](std::size_t chunk) {
        ++num_early;
        model.begin_reduction(chunk, *replicas);
      };
      engine.run(batch_of(index, data), optimizer, early ? stage_done : Engine::StageDone());
    }
    EXPECT_EQ(num_early, early ? 2 * (model.stages().size() - 1) : 0) << schedule;
    const std::lock_guard lock(mutex);
    const auto self = static_cast<std::size_t>(index);
    bytes[self] += model.ledger().live()[static_cast<std::size_t>(MemoryClass::kOptimizer)];
    for (const TrainedParameter& one : model.trained()) {
      weights[self][one.parameter->spec.name] = one.parameter->value.clone();
    }
  });
  outcome.optimizer_bytes = *std::max_element(bytes.begin(), bytes.end());
  for (const NamedTensors& others : weights) {
    for (const auto& [name, value] : others) {
      outcome.replicas_agree = outcome.replicas_agree && at::equal(value, weights[0].at(name));
    }
  }
  outcome.weights = std::move(weights[0]);
  return outcome;
}

double relative_error(const at::Tensor& got, const at::Tensor& wanted) {
  return (got - wanted).abs().max().item<double>() / wanted.abs().max().item<double>();
}

TEST(DataParallel, GivesTheNumbersOfOneProcessForEveryLayout) {
  for (const bool tied : {false, true}) {
    const Outcome one = run(1, 1, tied);
    for (const auto& [data, ranks] : {std::pair{1, 4}, {2, 2}, {4, 1}, {2, 4}}) {
      SCOPED_TRACE(::testing::Message() << data << " x " << ranks << (tied ? ", tied" : ""));
      const Outcome got = run(data, ranks, tied);
      ASSERT_EQ(got.gradients.size(), one.gradients.size());
      for (const auto& [name, gradient] : one.gradients) {
        EXPECT_LE(relative_error(got.gradients.at(name), gradient), 1e-12) << name;
        EXPECT_LE(relative_error(got.weights.at(name), one.weights.at(name)), 1e-9) << name;
      }
      for (std::size_t step = 0; step < one.norms.size(); ++step) {
        EXPECT_NEAR(got.norms[step], one.norms[step], 1e-9 * one.norms[step]);
      }
      EXPECT_TRUE(got.replicas_agree);
    }
  }
}

TEST(DataParallel, GradientsThatTravelEarlyChangeNoBit) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-v"}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(::testing::Message() << schedule << (tied ? ", tied" : ""));
      const Outcome late = run(2, 2, tied, schedule, false);
      const Outcome early = run(2, 2, tied, schedule, true);
      EXPECT_EQ(early.norms, late.norms);
      ASSERT_EQ(early.weights.size(), late.weights.size());
      for (const auto& [name, weight] : late.weights) {
        EXPECT_TRUE(at::equal(early.weights.at(name), weight)) << name;
      }
      EXPECT_TRUE(early.replicas_agree);
    }
  }
}

TEST(DataParallel, OptimizerMemoryOfARankFallsWithTheNumberOfPipelines) {
  const auto whole = static_cast<double>(run(1, 1, false).optimizer_bytes);
  for (const int data : {2, 4}) {
    EXPECT_NEAR(static_cast<double>(run(data, 1, false).optimizer_bytes), whole / data,
                0.02 * whole / data);
  }
}

TEST(DataParallel, PartsCoverEveryElementOnceAlsoOfSmallTensors) {
  for (const std::int64_t size : {1, 15, 16, 17, 100, 1000}) {
    for (const int count : {1, 2, 3, 8}) {
      const at::Tensor numbers = at::arange(size, at::kLong);
      std::int64_t next = 0;
      for (int index = 0; index < count; ++index) {
        const at::Tensor part = part_of(numbers, {index, count});
        for (std::int64_t i = 0; i < part.numel(); ++i) {
          EXPECT_EQ(part[i].item<std::int64_t>(), next++);
        }
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(DataParallel, StateComesTogetherOnTheFirstReplica) {
  run_ranks(make_local_transports(3), [](Transport& replicas) {
    Parameter parameter;
    parameter.value = at::arange(100, at::kDouble).view({10, 10});
    parameter.gradient = at::zeros_like(parameter.value);
    const Shard shard{replicas.rank(), 3};
    AdamState own = make_adam_state(part_of(parameter, shard));
    own.exp_avg.copy_(part_of(parameter.value, shard));
    own.exp_avg_sq.fill_(replicas.rank());
    const AdamState whole = gather_state(parameter, own, replicas);
    replicas.barrier();
    EXPECT_EQ(whole.exp_avg.defined(), replicas.rank() == 0);
    if (replicas.rank() != 0) return;
    EXPECT_TRUE(at::equal(whole.exp_avg, parameter.value));
    EXPECT_EQ(whole.exp_avg_sq.view(-1)[99].item<double>(), 2.0);
    EXPECT_EQ(whole.exp_avg_sq.view(-1)[0].item<double>(), 0.0);
  });
}

}  // namespace
}  // namespace sluice
