// With the vocabulary sharded over the ranks every schedule computes what the unsplit model
// computes under autograd, and on the same ranks all schedules compute the same bits.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "sluice/comm/local.h"
#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/offload_schedule.h"
#include "sluice/sim/vocab_plan.h"
#include "sluice/train/pipeline_step.h"
#include "tests/small_training_for_tests.h"

namespace sluice {
namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kVocab = 23;
constexpr std::int64_t kTokens = 5;
constexpr std::int64_t kSlicedTokens = 12;

Layout layout_of(const ModelConfig& config, int num_stages) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < num_stages; ++stage) rank_of_stage.push_back(stage);
  return parse_layout("uniform", config, rank_of_stage, kTokens, /*sharded_vocabulary=*/true);
}

StepBatch random_batch(int num_microbatches, bool ignore_whole_microbatch = false,
                       std::int64_t tokens = kTokens) {
  StepBatch batch;
  auto generator = at::detail::createCPUGenerator(5);
  std::int64_t num_targets = 0;
  for (int i = 0; i < num_microbatches; ++i) {
    const at::Tensor all = at::randint(0, kVocab, {2, tokens + 1}, generator, at::kLong);
    batch.tokens_BT.push_back(all.narrow(1, 0, tokens).contiguous());
    at::Tensor targets = all.narrow(1, 1, tokens).contiguous();
    if (i > 0) targets[0][i % tokens] = -100;
    if (ignore_whole_microbatch && i == 1) targets.fill_(-100);
    num_targets += targets.ne(-100).sum().item<std::int64_t>();
    batch.targets_BT.push_back(targets);
  }
  batch.loss.scale = 1.0 / static_cast<double>(num_targets);
  batch.loss.z_loss = 0.01;
  return batch;
}

// All forwards alike, all backwards alike, and S and T shorter than either.
CostModel unit_cost(const Placement& placement, int slices) {
  CostModel cost = cost_from_rank_times({}, placement, slices);
  for (const PassKind kind : {PassKind::kVocabForward, PassKind::kVocabBackward}) {
    cost.ticks[static_cast<std::size_t>(kind)].assign(
        static_cast<std::size_t>(placement.num_stages() * slices), 200'000 / slices);
  }
  return cost;
}

Schedule planned(const std::string& name, int ranks, int microbatches, VocabForm form,
                 int slices = 1) {
  const auto make = [&](int count) {
    return make_schedule(name, {.ranks = ranks, .microbatches = count, .slices = slices});
  };
  return plan_vocabulary(make, microbatches, form, unit_cost(make(microbatches).placement, slices));
}

struct Trained {
  StepOutcome first;
  NamedTensors weights;
  std::vector<double> losses;
};

Trained train(const ModelConfig& config, const Program& program, const StepBatch& batch,
              bool keep_probabilities) {
  const auto transports = make_local_transports(program.num_ranks(), {.rendezvous = true});
  auto ranks = make_rank_models(config, layout_of(config, program.num_stages()), program.placement,
                                at::kCPU, kSeed);
  Trained result;
  result.first = run_pipeline_step(program, ranks, transports, batch, keep_probabilities);
  run_ranks(transports, [&](Transport& transport) {
    RankModel& model = *ranks[static_cast<std::size_t>(transport.rank())];
    Engine engine(program, model.stages(), transport, model.ledger(), {},
                  {.layers = model.vocabulary(), .keep_probabilities = keep_probabilities});
    const auto losses = train_steps(engine, model, transport, batch, 2);
    if (transport.rank() == 0) result.losses = losses;
  });
  result.weights = copy_weights(ranks);
  return result;
}

// The oracle starts from the weights of an unsplit, unsharded model.
ReferenceResult reference(const ModelConfig& config, const StepBatch& batch) {
  const Layout layout = parse_layout("uniform", config, {0}, kTokens);
  const auto models = make_rank_models(config, layout, Placement::loop(1, 1), at::kCPU, kSeed);
  return reference_step(config, copy_weights(models), at::cat(batch.tokens_BT),
                        at::cat(batch.targets_BT), batch.loss);
}

void expect_close(const StepOutcome& got, const ReferenceResult& wanted) {
  LossSum loss;
  for (const LossSum& sum : got.losses) {
    loss.cross_entropy += sum.cross_entropy;
    loss.z_loss += sum.z_loss;
    loss.num_targets += sum.num_targets;
  }
  EXPECT_LE(std::abs(loss.cross_entropy - wanted.loss.cross_entropy),
            1e-12 * wanted.loss.cross_entropy);
  EXPECT_LE(std::abs(loss.z_loss - wanted.loss.z_loss), 1e-12 * wanted.loss.z_loss);
  EXPECT_EQ(loss.num_targets, wanted.loss.num_targets);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (const auto& [name, gradient] : wanted.gradients) {
    ASSERT_TRUE(got.gradients.contains(name)) << name;
    EXPECT_LE(relative_error(got.gradients.at(name), gradient), 1e-12) << name;
  }
}

class VocabParity : public ::testing::TestWithParam<std::tuple<VocabForm, bool>> {
 protected:
  static void SetUpTestSuite() { install_ledger_allocator(); }
};

TEST_P(VocabParity, OfEveryScheduleIsThatOfAutogradAndOf1F1BOnTheSameRanks) {
  const auto& [form, tied] = GetParam();
  const ModelConfig config = small_config(/*num_layers=*/9, tied, DType::kFloat64);
  const int ranks = tied ? 3 : 4;
  const int m = ranks + 2;
  const StepBatch batch = random_batch(m);
  const ReferenceResult wanted = reference(config, batch);
  const Trained plain = train(config, lower(planned("1f1b", ranks, m, form)), batch, true);
  for (const ScheduleInfo& info : schedule_library()) {
    if (info.slices_itself) continue;  // one slice here
    SCOPED_TRACE(fmt::format("{} on {} ranks", info.name, ranks));
    const Program program = lower(planned(info.name, ranks, m, form));
    ASSERT_TRUE(verify(program).empty());
    const Trained got = train(config, program, batch, true);
    expect_close(got.first, wanted);
    expect_same_bits(got.first.gradients, plain.first.gradients);
    expect_same_bits(got.weights, plain.weights);
    EXPECT_EQ(got.losses, plain.losses);
  }
}

TEST_P(VocabParity, HoldsForAnyNumberOfRanksAndForOneMicrobatch) {
  const auto& [form, tied] = GetParam();
  const ModelConfig config = small_config(/*num_layers=*/9, tied, DType::kFloat64);
  for (const int m : {1, 4}) {
    const StepBatch batch = random_batch(m, /*ignore_whole_microbatch=*/true);
    const ReferenceResult wanted = reference(config, batch);
    for (const int ranks : {1, 2, 5, 8}) {
      for (const bool keep : {true, false}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} microbatches, keep {}", ranks, m, keep));
        const Program program = lower(planned("1f1b", ranks, m, form));
        expect_close(train(config, program, batch, keep).first, wanted);
      }
    }
  }
}

// On one rank a shard is the whole layer, which vocab_shard_test.cc holds against autograd.
TEST_P(VocabParity, HoldsForEveryOptionOfTheLoss) {
  const auto& [form, tied] = GetParam();
  const ModelConfig config = small_config(/*num_layers=*/9, tied, DType::kFloat64);
  StepBatch batch = random_batch(3, /*ignore_whole_microbatch=*/true);
  const Program one = lower(planned("1f1b", 1, 3, form));
  const Program three = lower(planned("v-half", 3, 3, form));
  const double scale = batch.loss.scale;
  for (const LossOptions& options :
       {LossOptions{.scale = scale, .label_smoothing = 0.1},
        LossOptions{.scale = scale, .z_loss = 0.1, .logit_softcap = 1.5}}) {
    batch.loss = options;
    batch.weights_BT.clear();
    for (const bool weighted : {false, true}) {
      for (const at::Tensor& targets_BT : batch.targets_BT) {
        if (weighted) batch.weights_BT.push_back((targets_BT % 3).to(at::kDouble));
      }
      const Trained wanted = train(config, one, batch, true),
                    got = train(config, three, batch, true);
      ReferenceResult whole{.loss = {}, .gradients = wanted.first.gradients};
      for (const LossSum& sum : wanted.first.losses) {
        whole.loss.cross_entropy += sum.cross_entropy;
        whole.loss.z_loss += sum.z_loss;
        whole.loss.num_targets += sum.num_targets;
      }
      expect_close(got.first, whole);
    }
  }
}

TEST_P(VocabParity, HoldsForValidation) {
  const auto& [form, tied] = GetParam();
  const ModelConfig config = small_config(/*num_layers=*/9, tied, DType::kFloat64);
  const StepBatch batch = random_batch(4);
  const ReferenceResult wanted = reference(config, batch);
  const Program program = lower(forward_only(planned("interleaved", 3, 4, form)));
  ASSERT_TRUE(verify(program).empty());
  const auto ranks = make_rank_models(config, layout_of(config, program.num_stages()),
                                      program.placement, at::kCPU, kSeed);
  for (int round = 0; round < 2; ++round) {
    const StepOutcome got = run_pipeline_step(program, ranks, make_local_transports(3, {}), batch);
    double loss = 0.0;
    for (const LossSum& sum : got.losses) loss += sum.cross_entropy;
    EXPECT_LE(std::abs(loss - wanted.loss.cross_entropy), 1e-12 * wanted.loss.cross_entropy);
  }
}

// A rank's copies and exchanged attention change no bit.
Program with_copies_and_exchange(const Schedule& schedule, ExchangeMode mode) {
  CostModel cost = unit_cost(schedule.placement, schedule.num_slices);
  set_offload_ratio(cost, 0.1);
  const OffloadPlan copies =
      offload_schedule(schedule, cost, parse_offload("offload", "full", schedule.placement), 0.0);
  EXPECT_TRUE(has_offload(copies.schedule));
  Program program = lower(copies.schedule);
  program.exchange =
      plan_exchange(program, mode, causal_costs(program.num_stages(), program.num_slices));
  EXPECT_EQ(program.exchange.empty(), mode == ExchangeMode::kNone);
  return program;
}

class SlicedVocabParity : public VocabParity {};

TEST_P(SlicedVocabParity, HoldsTogetherWithOffloadAndExchange) {
  const auto& [form, tied] = GetParam();
  constexpr int kRanks = 3, kMicrobatches = 2, kSlices = 6;
  const ModelConfig config = small_config(/*num_layers=*/9, tied, DType::kFloat64);
  const StepBatch batch = random_batch(kMicrobatches, true, kSlicedTokens);
  const ReferenceResult wanted = reference(config, batch);
  const Trained plain =
      train(config, lower(planned("1f1b", kRanks, kMicrobatches, form, kSlices)), batch, true);
  expect_close(plain.first, wanted);
  for (const ScheduleInfo& info : schedule_library()) {
    if (info.offload != "none") continue;  // their copies are made below
    Schedule schedule;
    try {
      schedule = planned(info.name, kRanks, kMicrobatches, form, kSlices);
    } catch (const InvalidArgument&) {  // not every schedule takes every size
      EXPECT_EQ(info.name, "dualpipe-v");
      continue;
    }
    std::vector<Program> programs = {lower(schedule)};
    if (info.slices_itself || info.name == "1f1b") {
      programs.push_back(with_copies_and_exchange(schedule, ExchangeMode::kNone));
      programs.push_back(with_copies_and_exchange(schedule, ExchangeMode::kBalanced));
    }
    for (const Program& program : programs) {
      SCOPED_TRACE(fmt::format("{}, program {}", info.name, &program - programs.data()));
      const auto problems = verify(program);
      ASSERT_TRUE(problems.empty()) << problems.front().text;
      const Trained got = train(config, program, batch, true);
      expect_same_bits(got.first.gradients, plain.first.gradients);
      expect_same_bits(got.weights, plain.weights);
      EXPECT_EQ(got.losses, plain.losses);
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<VocabParity::ParamType>& info) {
  return fmt::format("{}_{}",
                     std::get<0>(info.param) == VocabForm::kParallel1 ? "parallel1" : "parallel2",
                     std::get<1>(info.param) ? "tied" : "untied");
}

INSTANTIATE_TEST_SUITE_P(Forms, VocabParity,
                         ::testing::Combine(::testing::Values(VocabForm::kParallel1,
                                                              VocabForm::kParallel2),
                                            ::testing::Bool()),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Forms, SlicedVocabParity,
                         ::testing::Values(std::tuple{VocabForm::kParallel1, false},
                                           std::tuple{VocabForm::kParallel2, true}),
                         case_name);

}  // namespace
}  // namespace sluice
