// Offload planned again: what counts as different, and what changes.
#include "sluice/train/replan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/schedule/offload.h"

namespace sluice {
namespace {

RunConfig small(const std::string& offload = "full") {
  RunConfig config;
  config.model.vocab_size = 256;
  config.model.hidden_size = 64;
  config.model.intermediate_size = 128;
  config.model.num_hidden_layers = 8;
  config.model.num_attention_heads = 4;
  config.model.num_key_value_heads = 4;
  config.data.sequence_length = 64;
  config.pipeline.schedule = "po";
  config.pipeline.ranks = 4;
  config.pipeline.chunks = 2;
  config.pipeline.microbatches = 16;
  config.pipeline.microbatch_size = 1;
  config.pipeline.offload = offload;
  return config;
}

/// A rate that makes a copy of a stage there and back take `ratio` times its passes.
CopyRates rates_of(const RunPlan& plan, double ratio) {
  double ticks = 0.0;
  double num_bytes = 0.0;
  for (std::int32_t stage = 0; stage < plan.cost.num_stages; ++stage) {
    for (const PassKind kind : {PassKind::kForward, PassKind::kBackward}) {
      ticks += static_cast<double>(plan.cost.duration({kind, stage, 0, 0}));
    }
    num_bytes += static_cast<double>(plan.memory.stages[static_cast<std::size_t>(stage)].movable);
  }
  const double rate = 2.0 * num_bytes / (ratio * ticks * 1e-9);
  return {.out = rate, .in = rate};
}

RunPlan plan_at(const RunConfig& config, double ratio) {
  RunConfig bare = config;
  bare.pipeline.offload = "none";
  return make_plan(config, 1e9, rates_of(make_plan(bare, 1e9), ratio));
}

/// What was measured when everything was as planned.
MeasuredOffload as_planned(const RunPlan& plan) { return {plan.copies.passes, plan.copies.rates}; }

TEST(Replan, LeavesAPlanThatTheStepsAgreeWith) {
  const RunConfig config = small();
  const RunPlan plan = plan_at(config, 0.5);
  MeasuredOffload measured = as_planned(plan);
  measured.rates.out *= 1.15;
  for (auto& row : measured.passes.ticks) {
    for (auto& ticks : row) ticks = ticks * 9 / 10;
  }
  const Replan result = replan(config, plan, measured);
  EXPECT_FALSE(result.plan.has_value());
  EXPECT_NE(result.note.find("the plan stays"), std::string::npos) << result.note;
}

TEST(Replan, MovesFewerActivationsOverASlowerLinkAndMoreOverAFasterOne) {
  const RunConfig config = small();
  const RunPlan fast = plan_at(config, 0.4);
  const RunPlan slow = plan_at(config, 1.6);
  ASSERT_LT(fast.copies.peak, slow.copies.peak);
  for (const bool slower : {true, false}) {
    const RunPlan& before = slower ? fast : slow;
    const RunPlan& wanted = slower ? slow : fast;
    MeasuredOffload measured = as_planned(before);
    measured.rates = wanted.copies.rates;
    const Replan result = replan(config, before, measured);
    ASSERT_TRUE(result.plan.has_value()) << result.note;
    EXPECT_NE(result.note.find("copies out reach"), std::string::npos) << result.note;
    EXPECT_EQ(result.plan->schedule.ranks, wanted.schedule.ranks);
    EXPECT_EQ(without_offload(result.plan->schedule).ranks, without_offload(before.schedule).ranks);
    EXPECT_EQ(result.plan->copies.peak, wanted.copies.peak);
    EXPECT_NEAR(result.plan->copies.k, wanted.copies.k, 1e-3);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(result.plan->prediction.memory[rank].total, wanted.prediction.memory[rank].total);
    }
  }
}

TEST(Replan, NamesThePassThatTookAnotherTime) {
  const RunConfig config = small();
  const RunPlan plan = plan_at(config, 0.9);
  MeasuredOffload measured = as_planned(plan);
  for (auto& row : measured.passes.ticks) {
    for (auto& ticks : row) ticks *= 3;
  }
  measured.passes.ticks[static_cast<std::size_t>(PassKind::kForward)][2] *= 2;
  const Replan result = replan(config, plan, measured);
  EXPECT_NE(result.note.find("F of stage 2 takes"), std::string::npos) << result.note;
  ASSERT_TRUE(result.plan.has_value());
  EXPECT_LT(result.plan->copies.k, 0.3);
  EXPECT_GT(result.plan->copies.num_moved, plan.copies.num_moved);
}

TEST(Replan, KeepsTheFirstPlanWhereNothingOfWhatWasAskedForCouldLeave) {
  const RunConfig config = small();
  const RunPlan plan = plan_at(config, 0.5);
  MeasuredOffload measured = as_planned(plan);
  measured.rates = {.out = 1.0, .in = 1.0};
  const Replan kept = replan(config, plan, measured);
  EXPECT_FALSE(kept.plan.has_value());
  EXPECT_NE(kept.note.find("so the first plan stays"), std::string::npos) << kept.note;
  const RunConfig free = small("auto");
  const Replan dropped = replan(free, plan_at(free, 0.5), measured);
  ASSERT_TRUE(dropped.plan.has_value());
  EXPECT_FALSE(has_offload(dropped.plan->schedule));
}

TEST(PlanOffload, RefusesALinkThatCanCarryNothingWithTheNumbersAndTheSetting) {
  const CopyRates slow{.out = 1e3, .in = 2e3};
  try {
    make_plan(small(), 1e9, slow);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    const std::string told = error.what();
    for (const char* words : {"pipeline.offload = full", "GB/s out", "times what its passes take",
                              "pipeline.offload = \"auto\""}) {
      EXPECT_NE(told.find(words), std::string::npos) << told;
    }
  }
  EXPECT_EQ(make_plan(small("auto"), 1e9, slow).copies.num_moved, 0);
}

TEST(OffloadSetup, ChecksTheRoomForAllProcessesOfTheMachine) {
  const RunPlan plan = plan_at(small(), 0.5);
  const std::vector<std::int64_t> bytes = movable_bytes(plan.memory);
  const auto stores = [&](int num_processes) {
    return make_stores_here(small().pipeline, plan.program, bytes,
                            {.first_rank = 1, .num_ranks = 2, .num_processes = num_processes});
  };
  EXPECT_EQ(stores(2).size(), 2U);
  EXPECT_GT(stores(2).front()->capacity(), 0);
  EXPECT_THROW(stores(1 << 30), InvalidArgument);
}

TEST(Replan, CombinesTheSlowestReplicaAndTheSlowestLink) {
  const RunConfig config = small();
  const RunPlan plan = plan_at(config, 0.5);
  const std::size_t num_units = 8;
  std::vector<std::vector<double>> figures(2,
                                           std::vector<double>(kNumPassKinds * num_units + 4, 0.0));
  figures[0][3] = 50.0;
  figures[1][3] = 70.0;
  const std::size_t copies = kNumPassKinds * num_units;
  figures[0][copies] = 1000.0;
  figures[0][copies + 1] = 2.0;
  figures[1][copies] = 1000.0;
  figures[1][copies + 1] = 4.0;
  const MeasuredOffload measured = combine(figures, plan.program, {.out = 7.0, .in = 9.0});
  EXPECT_EQ(measured.passes.ticks[0][3], 70);
  EXPECT_EQ(measured.passes.ticks[0][4], 0);
  EXPECT_EQ(measured.rates.out, 250.0);
  EXPECT_EQ(measured.rates.in, 9.0) << "nothing came back: what is known stays";
  figures[1].pop_back();
  EXPECT_THROW(combine(figures, plan.program, {}), InternalError);
}

}  // namespace
}  // namespace sluice
