// Every schedule, rank count and microbatch count computes what the unsplit model computes under
// autograd, and all of them compute the same bits.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "sluice/comm/local.h"
#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/schedule/registry.h"
#include "sluice/train/pipeline_step.h"
#include "tests/small_training_for_tests.h"

namespace sluice {
namespace {

constexpr int kLayers = 17;  // one more than the stages of 8 ranks with two chunks
constexpr std::int64_t kSequences = 2;
constexpr std::int64_t kTokens = 5;
constexpr std::uint64_t kSeed = 11;

/// Layers spread unevenly: the rest goes to the middle stages.
Layout uneven_layout(int num_stages) {
  std::vector<int> counts(static_cast<std::size_t>(num_stages), kLayers / num_stages);
  for (int left = kLayers % num_stages, i = num_stages / 3; left > 0; --left, ++i) {
    ++counts[static_cast<std::size_t>(i % num_stages)];
  }
  if (num_stages > 1 && counts[0] > 1) {
    --counts[0];
    ++counts[static_cast<std::size_t>(num_stages / 2)];
  }
  Layout layout;
  int first = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const int count = counts[static_cast<std::size_t>(stage)];
    layout.push_back({first, count, stage == 0, stage + 1 == num_stages});
    first += count;
  }
  return layout;
}

/// Random tokens; targets are the next tokens with some marked as none.
StepBatch random_batch(int num_microbatches, std::int64_t tokens = kTokens) {
  StepBatch batch;
  auto generator = at::detail::createCPUGenerator(5);
  std::int64_t num_targets = 0;
  for (int i = 0; i < num_microbatches; ++i) {
    const at::Tensor all = at::randint(0, 23, {kSequences, tokens + 1}, generator, at::kLong);
    batch.tokens_BT.push_back(all.narrow(1, 0, tokens).contiguous());
    at::Tensor targets = all.narrow(1, 1, tokens).contiguous();
    targets[0][i % tokens] = -100;
    num_targets += targets.ne(-100).sum().item<std::int64_t>();
    batch.targets_BT.push_back(targets);
  }
  batch.loss.scale = 1.0 / static_cast<double>(num_targets);
  return batch;
}

/// Loss and gradients of the whole batch, unsplit, under autograd.
ReferenceResult reference(const ModelConfig& config, const NamedTensors& weights,
                          const StepBatch& batch) {
  return reference_step(config, weights, at::cat(batch.tokens_BT), at::cat(batch.targets_BT),
                        batch.loss);
}

struct Trained {
  StepOutcome first;     // before any update
  NamedTensors weights;  // after the steps
  std::vector<double> losses;
};

Trained train(const ModelConfig& config, const Program& program, const StepBatch& batch,
              int num_steps) {
  const Layout layout = uneven_layout(program.num_stages());
  auto ranks = make_rank_models(config, layout, program.placement, at::kCPU, kSeed);
  const auto transports = make_local_transports(program.num_ranks(), {.rendezvous = false});
  Trained result;
  result.first = run_pipeline_step(program, ranks, transports, batch);
  const auto step_transports = make_local_transports(program.num_ranks(), {});
  run_ranks(step_transports, [&](Transport& transport) {
    RankModel& model = *ranks[static_cast<std::size_t>(transport.rank())];
    Engine engine(program, model.stages(), transport, model.ledger());
    const auto losses = train_steps(engine, model, transport, batch, num_steps);
    if (transport.rank() == 0) result.losses = losses;
  });
  result.weights = copy_weights(ranks);
  return result;
}

void expect_close(const StepOutcome& got, const ReferenceResult& wanted, double bound) {
  double loss = 0.0;
  for (const LossSum& sum : got.losses) loss += sum.cross_entropy;
  EXPECT_LE(std::abs(loss - wanted.loss.cross_entropy), bound * wanted.loss.cross_entropy);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (const auto& [name, gradient] : wanted.gradients) {
    ASSERT_TRUE(got.gradients.contains(name)) << name;
    EXPECT_LE(relative_error(got.gradients.at(name), gradient), bound) << name;
  }
}

/// One rank running 1F1B is the plainest pipeline: what all others must equal. Computed once per
/// microbatch count; the weights it starts from are the oracle's too.
struct Plain {
  Trained trained;
  ReferenceResult reference;
};

const Plain& plain_run(bool tied, int num_microbatches, int slices = 1,
                       std::int64_t tokens = kTokens) {
  static std::map<std::tuple<bool, int, int>, Plain> runs;
  const auto [entry, fresh] = runs.try_emplace({tied, num_microbatches, slices});
  if (fresh) {
    const ModelConfig config = small_config(kLayers, tied, DType::kFloat64);
    const StepBatch batch = random_batch(num_microbatches, tokens);
    const Program program = lower(
        make_schedule("1f1b", {.ranks = 1, .microbatches = num_microbatches, .slices = slices}));
    entry->second.trained = train(config, program, batch, slices == 1 ? 5 : 1);
    const auto models =
        make_rank_models(config, uneven_layout(1), program.placement, at::kCPU, kSeed);
    entry->second.reference = reference(config, copy_weights(models), batch);
  }
  return entry->second;
}

class Parity : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  static void SetUpTestSuite() { install_ledger_allocator(); }
};

/// Microbatch counts below, equal to and not divisible by the ranks.
std::vector<int> microbatch_counts(int ranks) {
  std::vector<int> counts{std::max(1, ranks / 2), ranks, 2 * ranks + 1};
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

TEST_P(Parity, AgreesWithAutogradAndGivesTheSameBitsForEveryRankCount) {
  const auto& [name, tied] = GetParam();
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int m : microbatch_counts(ranks)) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << m << " microbatches");
      Schedule schedule;
      try {
        schedule = make_schedule(name, {.ranks = ranks, .microbatches = m});
      } catch (const InvalidArgument& error) {
        // Only a schedule that cannot work may refuse, and says what would.
        EXPECT_EQ(name, "dualpipe-v") << error.what();
        continue;
      }
      const Program program = lower(schedule);
      ASSERT_TRUE(verify(program).empty());
      const ModelConfig config = small_config(kLayers, tied, DType::kFloat64);
      const StepBatch batch = random_batch(m);
      const Trained got = train(config, program, batch, 5);
      if (HasFatalFailure()) return;

      const Plain& plain = plain_run(tied, m);
      expect_same_bits(got.first.gradients, plain.trained.first.gradients);
      expect_same_bits(got.weights, plain.trained.weights);
      EXPECT_EQ(got.losses, plain.trained.losses);
      expect_close(got.first, plain.reference, 1e-12);
    }
  }
}

TEST_P(Parity, AgreesWithAutogradInSinglePrecision) {
  const auto& [name, tied] = GetParam();
  const int ranks = name == "1f1b" ? 3 : 4;
  const int m = 2 * ranks + 1;
  const ModelConfig config = small_config(kLayers, tied, DType::kFloat32);
  const StepBatch batch = random_batch(m);
  const Program program = lower(make_schedule(name, {.ranks = ranks, .microbatches = m}));
  const Trained got = train(config, program, batch, 2);
  const auto models =
      make_rank_models(config, uneven_layout(1), Placement::loop(1, 1), at::kCPU, kSeed);
  // The oracle runs in fp64 on the same weights, so that its own rounding does not count.
  ModelConfig exact = config;
  exact.dtype = DType::kFloat64;
  NamedTensors weights = copy_weights(models);
  for (auto& [weight_name, value] : weights) value = value.to(at::kDouble);
  expect_close(got.first, reference(exact, weights, batch), 1e-5);
  const Trained again = train(config, program, batch, 2);
  expect_same_bits(again.weights, got.weights);
  const Trained plain =
      train(config, lower(make_schedule("1f1b", {.ranks = 1, .microbatches = m})), batch, 2);
  expect_same_bits(got.weights, plain.weights);
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedule_library()) {
    if (!info.slices_itself) names.push_back(info.name);  // one slice here
  }
  return names;
}

std::string case_name(const ::testing::TestParamInfo<Parity::ParamType>& info) {
  std::string name = std::get<0>(info.param) + (std::get<1>(info.param) ? "_tied" : "_untied");
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

/// Sequences cut into slices, through schedules that know slices and those whose passes are cut in
/// place.
class SlicedParity : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static void SetUpTestSuite() { install_ledger_allocator(); }
};

constexpr std::int64_t kSlicedTokens = 12;

struct SlicedCase {
  int ranks, microbatches, chunks;
  Recompute recompute;
  bool tied;
};

TEST_P(SlicedParity, AgreesWithTheUnslicedModelAndGivesTheSameBitsForEveryRankCount) {
  const auto& [name, slices] = GetParam();
  int num_run = 0;
  for (const SlicedCase& c :
       {SlicedCase{2, 1, 2, Recompute::kFull, true}, SlicedCase{2, 5, 0, Recompute::kNone, false},
        SlicedCase{3, 4, 3, Recompute::kSelective, false},
        SlicedCase{5, 6, 0, Recompute::kNone, true}}) {
    SCOPED_TRACE(::testing::Message() << c.ranks << " ranks, " << c.microbatches
                                      << " microbatches, " << c.chunks << " chunks");
    Schedule schedule;
    try {
      schedule = make_schedule(
          name,
          {.ranks = c.ranks, .microbatches = c.microbatches, .chunks = c.chunks, .slices = slices});
    } catch (const InvalidArgument&) {  // not every schedule takes every size
      continue;
    }
    ++num_run;
    const Program program = lower(schedule);
    ASSERT_TRUE(verify(program).empty());
    ModelConfig config = small_config(kLayers, c.tied, DType::kFloat64);
    config.recompute = c.recompute;
    const Trained got = train(config, program, random_batch(c.microbatches, kSlicedTokens), 1);
    if (HasFatalFailure()) return;
    const Plain& plain = plain_run(c.tied, c.microbatches, slices, kSlicedTokens);
    expect_same_bits(got.first.gradients, plain.trained.first.gradients);
    expect_same_bits(got.weights, plain.trained.weights);
    EXPECT_EQ(got.losses, plain.trained.losses);
    expect_close(got.first, plain.reference, 1e-12);
  }
  EXPECT_GE(num_run, name == "dualpipe-v" ? 1 : 2);
}

TEST_P(SlicedParity, AgreesWithTheUnslicedModelInSinglePrecision) {
  const auto& [name, slices] = GetParam();
  const int ranks = 3, m = 3;
  const ModelConfig config = small_config(kLayers, true, DType::kFloat32);
  const StepBatch batch = random_batch(m, kSlicedTokens);
  const Trained got = train(
      config,
      lower(make_schedule(
          name, {.ranks = name == "dualpipe-v" ? 1 : ranks, .microbatches = m, .slices = slices})),
      batch, 1);
  const auto models =
      make_rank_models(config, uneven_layout(1), Placement::loop(1, 1), at::kCPU, kSeed);
  ModelConfig exact = config;
  exact.dtype = DType::kFloat64;
  NamedTensors weights = copy_weights(models);
  for (auto& [weight_name, value] : weights) value = value.to(at::kDouble);
  expect_close(got.first, reference(exact, weights, batch), 1e-5);
}

/// Attention that ranks compute for each other gives the bits of attention that they do not.
class ExchangeParity : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { install_ledger_allocator(); }
};

TEST_P(ExchangeParity, GivesTheSameBitsInEveryMode) {
  constexpr int kSlices = 8, kMicrobatches = 2;
  const StepBatch batch = random_batch(kMicrobatches, 2 * kSlices);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t kv_heads : {1, 2}) {  // halves are rows, or heads
      ModelConfig config = small_config(kLayers, /*tied=*/true, dtype);
      config.num_key_value_heads = kv_heads;
      const Trained plain =
          train(config,
                lower(make_schedule(
                    "1f1b", {.ranks = 1, .microbatches = kMicrobatches, .slices = kSlices})),
                batch, 1);
      for (const auto& [ranks, mode] :
           {std::pair{3, ExchangeMode::kBalanced}, std::pair{4, ExchangeMode::kPairwise}}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << to_string(mode) << ", "
                                          << kv_heads << " key-value heads");
        Program program = lower(make_schedule(
            GetParam(), {.ranks = ranks, .microbatches = kMicrobatches, .slices = kSlices}));
        program.exchange =
            plan_exchange(program, mode, causal_costs(program.num_stages(), kSlices));
        ASSERT_TRUE(verify(program).empty());
        EXPECT_TRUE(!program.exchange.empty() || mode == ExchangeMode::kPairwise);
        config.recompute = ranks == 3 ? Recompute::kFull : Recompute::kNone;
        const Trained got = train(config, program, batch, 1);
        if (HasFatalFailure()) return;
        expect_same_bits(got.first.gradients, plain.first.gradients);
        expect_same_bits(got.weights, plain.weights);
        EXPECT_EQ(got.losses, plain.losses);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ExchangeParity,
                         ::testing::Values("1f1b", "zb-v", "slimpipe", "seq1f1b", "slice-v"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::vector<std::string> all_schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedule_library()) names.push_back(info.name);
  return names;
}

std::string sliced_name(const ::testing::TestParamInfo<SlicedParity::ParamType>& info) {
  std::string name =
      std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param)) + "_slices";
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Schedules, SlicedParity,
                         ::testing::Combine(::testing::ValuesIn(all_schedule_names()),
                                            ::testing::Values(6)),
                         sliced_name);

INSTANTIATE_TEST_SUITE_P(Schedules, Parity,
                         ::testing::Combine(::testing::ValuesIn(schedule_names()),
                                            ::testing::Bool()),
                         case_name);

}  // namespace
}  // namespace sluice
