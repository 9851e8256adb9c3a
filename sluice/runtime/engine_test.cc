#include "sluice/runtime/engine.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "sluice/comm/local.h"
#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/device.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

ModelConfig small_model() {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  return config;
}

StageLayers layers_of(int stage, int num_stages) {
  const int per_stage = 8 / num_stages;
  return {stage * per_stage, per_stage, stage == 0, stage + 1 == num_stages};
}

StepBatch zero_batch(int num_microbatches) {
  StepBatch batch;
  for (int i = 0; i < num_microbatches; ++i) {
    batch.tokens_BT.push_back(at::zeros({1, 4}, at::kLong));
    batch.targets_BT.push_back(at::zeros({1, 4}, at::kLong));
  }
  return batch;
}

/// Runs one step of `program` on threads; returns the spans and leftover bytes of every rank.
struct StepRun {
  std::vector<std::vector<Span>> spans;
  std::vector<BytesByClass> left;
  int num_optimizer_calls = 0;
};

StepRun run_step(const Program& program, const LocalOptions& options = {}) {
  install_ledger_allocator();
  StepRun run;
  run.spans.resize(static_cast<std::size_t>(program.num_ranks()));
  run.left.resize(run.spans.size());
  std::mutex mutex;
  run_ranks(make_local_transports(program.num_ranks(), options), [&](Transport& transport) {
    const auto self = static_cast<std::size_t>(transport.rank());
    MemoryLedger ledger;
    std::vector<Stage> stages;
    for (const int stage : program.placement.stages_of(transport.rank())) {
      stages.emplace_back(small_model(), layers_of(stage, program.num_stages()), at::kCPU, 1);
    }
    std::vector<Stage*> pointers;
    for (Stage& stage : stages) pointers.push_back(&stage);
    Engine engine(program, pointers, transport, ledger);
    engine.run(zero_batch(program.num_microbatches), [&](const std::vector<LossSum>&) {
      const std::lock_guard lock(mutex);
      ++run.num_optimizer_calls;
    });
    run.spans[self] = engine.spans();
    run.left[self] = ledger.live();
  });
  return run;
}

TEST(Engine, ExecutesThePassesThatTheScheduleListsInItsOrder) {
  for (const ScheduleInfo& info : schedule_library()) {
    const Schedule schedule = make_schedule(
        info.name, {.ranks = 4, .microbatches = 8, .slices = info.slices_itself ? 4 : 1});
    const StepRun run = run_step(lower(schedule));
    for (std::size_t rank = 0; rank < run.spans.size(); ++rank) {
      std::vector<Pass> executed;
      for (const Span& span : run.spans[rank]) {
        const bool is_compute = span.lane == Lane::kCompute;
        if (span.kind == ActionKind::kPass && is_compute) executed.push_back(span.pass);
      }
      EXPECT_EQ(executed, without_offload(schedule).ranks[rank]) << info.name << ", rank " << rank;
    }
  }
}

TEST(Engine, TellsThatAStageIsDoneAfterItsLastGradient) {
  install_ledger_allocator();
  for (const char* name : {"interleaved", "zb-v", "v-half", "gis"}) {
    const Program program = lower(make_schedule(name, {.ranks = 2, .microbatches = 4}));
    run_ranks(make_local_transports(2), [&](Transport& transport) {
      MemoryLedger ledger;
      std::vector<Stage> stages;
      for (const int stage : program.placement.stages_of(transport.rank())) {
        stages.emplace_back(small_model(), layers_of(stage, program.num_stages()), at::kCPU, 1);
      }
      std::vector<Stage*> pointers;
      for (Stage& stage : stages) pointers.push_back(&stage);
      Engine engine(program, pointers, transport, ledger);
      std::map<std::size_t, std::size_t> told;  // chunk -> passes that had run
      engine.run(
          zero_batch(4), [](const std::vector<LossSum>&) {},
          [&](std::size_t chunk) { told[chunk] = engine.spans().size(); });
      EXPECT_EQ(told.size(), stages.size() - 1) << name;  // nothing runs after the other one
      for (const auto& [chunk, num_spans] : told) {
        const int stage = program.placement.stages_of(transport.rank())[chunk];
        for (std::size_t k = 0; k < engine.spans().size(); ++k) {
          const Span& span = engine.spans()[k];
          if (span.kind != ActionKind::kPass || span.pass.stage != stage) continue;
          EXPECT_LT(k, num_spans) << name << ", " << to_string(span.pass);
        }
        EXPECT_EQ(engine.spans()[num_spans - 1].pass.stage, stage) << name;
      }
    });
  }
}

TEST(Engine, HoldsNothingAfterAStep) {
  for (const char* name : {"1f1b", "zb-v", "interleaved", "gis", "po-h", "po-f"}) {
    const StepRun run = run_step(lower(make_schedule(name, {.ranks = 4, .microbatches = 6})));
    for (const BytesByClass& left : run.left) EXPECT_EQ(total_bytes(left), 0) << name;
    EXPECT_EQ(run.num_optimizer_calls, 4);
  }
}

TEST(Engine, SpansOfARankDoNotOverlapOnTheComputeLane) {
  const StepRun run = run_step(lower(make_schedule("zb-1p", {.ranks = 3, .microbatches = 7})));
  for (const auto& spans : run.spans) {
    std::int64_t end = 0;
    for (const Span& span : spans) {
      if (span.lane != Lane::kCompute) continue;
      EXPECT_GE(span.begin, end);
      EXPECT_GE(span.end, span.begin);
      end = span.end;
    }
  }
}

TEST(Engine, ForwardOnlyProgramEvaluatesAndSavesNothing) {
  const Schedule schedule = forward_only(make_schedule("1f1b", {.ranks = 2, .microbatches = 3}));
  const StepRun run = run_step(lower(schedule));
  EXPECT_EQ(run.num_optimizer_calls, 0);
  for (const BytesByClass& left : run.left) EXPECT_EQ(total_bytes(left), 0);
}

TEST(Engine, FailureOfOneRankStopsAllOfThemAndIsTheErrorSeen) {
  const Program program = lower(make_schedule("1f1b", {.ranks = 4, .microbatches = 8}));
  try {
    run_ranks(make_local_transports(4), [&](Transport& transport) {
      MemoryLedger ledger;
      Stage stage(small_model(), layers_of(transport.rank(), 4), at::kCPU, 1);
      StepBatch batch = zero_batch(8);
      if (transport.rank() == 3) batch.targets_BT[5] = at::zeros({1, 3}, at::kLong);  // too short
      Engine engine(program, {&stage}, transport, ledger);
      engine.run(batch, [](const std::vector<LossSum>&) {});
    });
    FAIL() << "targets of the wrong size went unnoticed";
  } catch (const CommError& error) {
    FAIL() << "the cause was lost: " << error.what();
  } catch (const std::exception&) {
  }
}

TEST(Engine, RefusesStagesThatDoNotFitThePlacement) {
  const Program program = lower(make_schedule("zb-v", {.ranks = 2, .microbatches = 2}));
  const auto transports = make_local_transports(2);
  MemoryLedger ledger;
  EXPECT_THROW(Engine(program, {}, *transports[0], ledger), InternalError);
}

TEST(Device, NamesWhatIsAllowedAndWhatIsMissing) {
  EXPECT_TRUE(parse_device("cpu").is_cpu());
  EXPECT_THROW(parse_device("tpu"), InvalidArgument);
}

}  // namespace
}  // namespace sluice
