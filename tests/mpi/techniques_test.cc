// Slices, attention exchange, offload and the sharded vocabulary over processes give the bits of
// the same Program over threads. Run under mpirun: every process trains its rank, and for itself
// all ranks as threads.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "sluice/comm/local.h"
#include "sluice/comm/mpi.h"
#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/engine.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/offload_schedule.h"
#include "sluice/sim/vocab_plan.h"
#include "sluice/train/rank_model.h"
#include "tests/small_training_for_tests.h"

namespace sluice {
namespace {

std::unique_ptr<MpiSession> session;

constexpr int kSteps = 2, kMicrobatches = 2, kSlices = 8;
constexpr std::int64_t kSequences = 2, kTokens = 2 * kSlices, kVocab = 23;

StepBatch random_batch() {
  StepBatch batch;
  auto generator = at::detail::createCPUGenerator(5);
  for (int i = 0; i < kMicrobatches; ++i) {
    const at::Tensor all = at::randint(0, kVocab, {kSequences, kTokens + 1}, generator, at::kLong);
    batch.tokens_BT.push_back(all.narrow(1, 0, kTokens).contiguous());
    batch.targets_BT.push_back(all.narrow(1, 1, kTokens).contiguous());
  }
  batch.loss.scale = 1.0 / static_cast<double>(kMicrobatches * kSequences * kTokens);
  return batch;
}

struct Techniques {
  std::string name;
  std::string schedule;
  ExchangeMode exchange = ExchangeMode::kNone;
  bool offload = false;
  VocabForm vocab = VocabForm::kLast;
};

Program make_program(const Techniques& used, int ranks) {
  const auto make = [&](int count) {
    return make_schedule(used.schedule, {.ranks = ranks, .microbatches = count, .slices = kSlices});
  };
  Schedule schedule = make(kMicrobatches);
  CostModel cost = cost_from_rank_times({}, schedule.placement, kSlices);
  for (const PassKind kind : {PassKind::kVocabForward, PassKind::kVocabBackward}) {
    cost.ticks[static_cast<std::size_t>(kind)].assign(
        static_cast<std::size_t>(schedule.num_stages() * kSlices), 200'000 / kSlices);
  }
  if (used.vocab != VocabForm::kLast) {
    schedule = plan_vocabulary(make, kMicrobatches, used.vocab, cost);
  }
  if (used.offload) {
    set_offload_ratio(cost, 0.1);
    schedule =
        offload_schedule(schedule, cost, parse_offload("offload", "full", schedule.placement), 0.0)
            .schedule;
    EXPECT_TRUE(has_offload(schedule));
  }
  Program program = lower(schedule);
  program.exchange =
      plan_exchange(program, used.exchange, causal_costs(program.num_stages(), kSlices));
  return program;
}

void PrintTo(const Techniques& used, std::ostream* out) { *out << used.name; }

struct Trained {
  std::vector<at::Tensor> weights;  // of one rank, in its order
  std::vector<double> losses;       // sum of the step's losses, gradient norm
};

Trained train(const Program& program, Transport& transport) {
  const ModelConfig config = small_config(/*num_layers=*/16, /*tied=*/true);
  std::vector<int> rank_of_stage;
  for (int i = 0; i < program.num_stages(); ++i)
    rank_of_stage.push_back(program.placement.rank_of(i));
  const Layout layout =
      parse_layout("uniform", config, rank_of_stage, kTokens, program.vocab != VocabForm::kLast);
  RankModel model(config, layout, program.placement, transport.rank(), at::kCPU, /*seed=*/11);
  model.spread_tied(transport);
  Engine engine(program, model.stages(), transport, model.ledger(), {},
                {.layers = model.vocabulary()});
  const StepBatch batch = random_batch();
  Trained trained;
  trained.losses = train_steps(engine, model, transport, batch, kSteps);
  for (const TrainedParameter& one : model.trained()) {
    trained.weights.push_back(one.parameter->value.clone());
  }
  return trained;
}

class MpiTechniques : public ::testing::TestWithParam<Techniques> {};

TEST_P(MpiTechniques, GiveTheBitsOfThreads) {
  const Program program = make_program(GetParam(), session->size());
  const auto problems = verify(program);
  ASSERT_TRUE(problems.empty()) << problems.front().text;
  Trained wanted;
  run_ranks(make_local_transports(session->size()), [&](Transport& transport) {
    Trained mine = train(program, transport);
    if (transport.rank() == session->rank()) wanted = std::move(mine);
  });
  std::vector<std::unique_ptr<Transport>> world;
  // Synchronous sends: nothing may rest on buffering.
  world.push_back(session->connect({.rendezvous = true}));
  Trained got;
  run_ranks(world, [&](Transport& transport) { got = train(program, transport); });
  EXPECT_EQ(got.losses, wanted.losses);
  ASSERT_EQ(got.weights.size(), wanted.weights.size());
  for (std::size_t i = 0; i < got.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(got.weights[i], wanted.weights[i])) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, MpiTechniques,
    ::testing::Values(
        Techniques{"slimpipe_alone", "slimpipe"},
        Techniques{"slimpipe_exchange", "slimpipe", ExchangeMode::kBalanced},
        Techniques{"exchange", "1f1b", ExchangeMode::kPairwise},
        Techniques{"offload", "1f1b", ExchangeMode::kNone, true},
        Techniques{"vocabulary_1", "1f1b", ExchangeMode::kNone, false, VocabForm::kParallel1},
        Techniques{"vocabulary_2", "zb-1p", ExchangeMode::kNone, false, VocabForm::kParallel2},
        Techniques{"all", "slimpipe", ExchangeMode::kBalanced, true, VocabForm::kParallel1}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  sluice::install_ledger_allocator();
  sluice::session = std::make_unique<sluice::MpiSession>();
  const int result = RUN_ALL_TESTS();
  sluice::session.reset();
  return result;
}
