// Every schedule over processes gives the bits of one rank: run under mpirun, every process is a
// rank and holds its own weights against those of a plain run that it makes for itself.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <memory>
#include <utility>

#include "sluice/comm/local.h"
#include "sluice/comm/mpi.h"
#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/verify.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/schedule/registry.h"
#include "sluice/train/pipeline_step.h"
#include "tests/small_training_for_tests.h"

namespace sluice {
namespace {

std::unique_ptr<MpiSession> session;

constexpr int kSteps = 2, kLayers = 16;
constexpr std::int64_t kSequences = 2, kTokens = 6;

Layout even_layout(int num_stages) {
  Layout layout;
  int first = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const int end = kLayers * (stage + 1) / num_stages;
    layout.push_back({first, end - first, stage == 0, stage + 1 == num_stages});
    first = end;
  }
  return layout;
}

StepBatch random_batch(int num_microbatches) {
  StepBatch batch;
  auto generator = at::detail::createCPUGenerator(5);
  for (int i = 0; i < num_microbatches; ++i) {
    const at::Tensor all = at::randint(0, 23, {kSequences, kTokens + 1}, generator, at::kLong);
    batch.tokens_BT.push_back(all.narrow(1, 0, kTokens).contiguous());
    batch.targets_BT.push_back(all.narrow(1, 1, kTokens).contiguous());
  }
  batch.loss.scale = 1.0 / static_cast<double>(num_microbatches * kSequences * kTokens);
  batch.num_sequences = kSequences;
  batch.num_tokens = kTokens;
  return batch;
}

struct Trained {
  NamedTensors weights;        // of the ranks that ran here
  std::vector<double> losses;  // sum of the step's losses, gradient norm
};

void train(const Program& program, RankModel& model, Transport& transport, bool only_ends_read,
           Trained& trained) {
  StepBatch batch = random_batch(program.num_microbatches);
  const int rank = transport.rank();
  if (only_ends_read && program.placement.rank_of(0) != rank) batch.tokens_BT.clear();
  model.spread_tied(transport);
  Engine engine(program, model.stages(), transport, model.ledger());
  trained.losses = train_steps(engine, model, transport, batch, kSteps);
  for (const TrainedParameter& one : model.trained()) {
    trained.weights[one.parameter->spec.name] = one.parameter->value.clone();
  }
}

RankModel make_model(const Program& program, bool tied, int rank) {
  return {small_config(kLayers, tied),
          even_layout(program.num_stages()),
          program.placement,
          rank,
          at::kCPU,
          /*seed=*/11};
}

const Trained& plain_run(bool tied, int num_microbatches) {
  static std::map<std::pair<bool, int>, Trained> runs;
  const auto [entry, fresh] = runs.try_emplace({tied, num_microbatches});
  if (fresh) {
    const Program program =
        lower(make_schedule("1f1b", {.ranks = 1, .microbatches = num_microbatches}));
    run_ranks(make_local_transports(1), [&](Transport& transport) {
      RankModel model = make_model(program, tied, 0);
      train(program, model, transport, false, entry->second);
    });
  }
  return entry->second;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedule_library()) names.push_back(info.name);
  return names;
}

class MpiParity : public ::testing::TestWithParam<std::string> {};

TEST_P(MpiParity, ProcessesGiveTheBitsOfOneRank) {
  const std::string& name = GetParam();
  const int ranks = session->size();
  for (const bool tied : {false, true}) {
    Schedule schedule;
    const int num_microbatches = tied ? 2 * ranks + 1 : 2 * ranks;
    try {
      schedule = make_schedule(name, {.ranks = ranks, .microbatches = num_microbatches});
    } catch (const InvalidArgument&) {
      continue;  // sizes that the schedule does not have
    }
    const Program program = lower(schedule);
    ASSERT_TRUE(verify(program).empty());
    std::vector<std::unique_ptr<Transport>> world;
    // Synchronous sends in one of the two: nothing may rest on buffering.
    world.push_back(session->connect({.rendezvous = tied}));
    Trained got;
    run_ranks(world, [&](Transport& transport) {
      RankModel model = make_model(program, tied, transport.rank());
      train(program, model, transport, true, got);
    });
    const Trained& wanted = plain_run(tied, num_microbatches);
    EXPECT_EQ(got.losses, wanted.losses);
    for (const auto& [weight, value] : got.weights) {
      EXPECT_TRUE(at::equal(value, wanted.weights.at(weight))) << weight;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, MpiParity, ::testing::ValuesIn(schedule_names()),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

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
