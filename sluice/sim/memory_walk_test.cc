// Memory by class over time, by the rules of docs/memory.md.
#include "sluice/sim/memory_walk.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sluice/common/errors.h"
#include "sluice/program/library_for_tests.h"
#include "sluice/program/lower.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

// Powers of ten, so that a sum shows what it is made of; stages differ by their number.
MemoryModel model_of(int num_stages) {
  MemoryModel model;
  for (int stage = 0; stage < num_stages; ++stage) {
    const auto times = static_cast<std::int64_t>(stage + 1);
    model.stages.push_back({.weights = 1'000'000 * times,
                            .gradients = 2'000'000 * times,
                            .optimizer = 4'000'000 * times,
                            .saved = 100'000,
                            .saved_for_weight = 60'000,
                            .boundary_input = 1'000,
                            .boundary_output = 1'000,
                            .workspace_forward = 10,
                            .workspace_backward = 50,
                            .workspace_backward_input = 30,
                            .workspace_backward_weight = 20});
  }
  return model;
}

std::int64_t of(const BytesByClass& bytes, MemoryClass memory_class) {
  return bytes[static_cast<std::size_t>(memory_class)];
}

Schedule schedule_of(Placement placement, std::vector<std::vector<Pass>> ranks) {
  Schedule schedule;
  schedule.placement = std::move(placement);
  schedule.num_microbatches = 1;
  schedule.ranks = std::move(ranks);
  return schedule;
}

Simulation run(const Schedule& schedule, const MemoryModel& model) {
  CostModel cost = cost_from_rank_times({}, schedule.placement, schedule.num_slices);
  return simulate(lower(schedule), cost, {.memory = &model, .record_memory = true});
}

struct Event {
  std::int64_t activations;
  std::int64_t boundary;
  std::int64_t workspace;
  friend bool operator==(const Event&, const Event&) = default;
};

void PrintTo(const Event& event, std::ostream* out) {
  *out << event.activations << "/" << event.boundary << "/" << event.workspace;
}

std::vector<Event> events(const Simulation& result, std::size_t rank) {
  std::vector<Event> list;
  for (const MemorySample& sample : result.curve.ranks[rank]) {
    list.push_back({of(sample.bytes, MemoryClass::kActivations),
                    of(sample.bytes, MemoryClass::kBoundary),
                    of(sample.bytes, MemoryClass::kWorkspace)});
  }
  return list;
}

TEST(Memory, FollowsAFullBackward) {
  const Schedule schedule = schedule_of(
      Placement::loop(3, 1), {{{PassKind::kForward, 0, 0, 0}, {PassKind::kBackward, 0, 0, 0}},
                              {{PassKind::kForward, 1, 0, 0}, {PassKind::kBackward, 1, 0, 0}},
                              {{PassKind::kForward, 2, 0, 0}, {PassKind::kBackward, 2, 0, 0}}});
  const Simulation result = run(schedule, model_of(3));
  // The first rank receives no activations, the last one sends none.
  EXPECT_EQ(events(result, 0), (std::vector<Event>{{0, 0, 0},
                                                   {100'000, 0, 10},
                                                   {100'000, 1'000, 0},
                                                   {100'000, 0, 0},
                                                   {100'000, 1'000, 50},
                                                   {0, 0, 0}}));
  EXPECT_EQ(events(result, 1), (std::vector<Event>{{0, 0, 0},
                                                   {100'000, 1'000, 10},
                                                   {100'000, 1'000, 0},
                                                   {100'000, 0, 0},
                                                   {100'000, 1'000, 50},
                                                   {0, 1'000, 0},
                                                   {0, 0, 0}}));
  EXPECT_EQ(events(result, 2), (std::vector<Event>{{0, 0, 0},
                                                   {100'000, 1'000, 10},
                                                   {100'000, 0, 0},
                                                   {100'000, 0, 50},
                                                   {0, 1'000, 0},
                                                   {0, 0, 0}}));
}

TEST(Memory, KeepsWhatAWeightPassNeedsUntilIt) {
  const Schedule schedule =
      schedule_of(Placement::loop(1, 1), {{{PassKind::kForward, 0, 0, 0},
                                           {PassKind::kBackwardInput, 0, 0, 0},
                                           {PassKind::kBackwardWeight, 0, 0, 0}}});
  const Simulation result = run(schedule, model_of(1));
  EXPECT_EQ(events(result, 0), (std::vector<Event>{{0, 0, 0},
                                                   {100'000, 0, 10},
                                                   {100'000, 0, 0},
                                                   {100'000, 0, 30},
                                                   {60'000, 0, 0},
                                                   {60'000, 0, 20},
                                                   {0, 0, 0}}));
}

TEST(Memory, HoldsABoundaryTensorUntilTheNextStageOfItsRankHasTakenIt) {
  const Schedule schedule = schedule_of(Placement::v_shape(1), {{{PassKind::kForward, 0, 0, 0},
                                                                 {PassKind::kForward, 1, 0, 0},
                                                                 {PassKind::kBackward, 1, 0, 0},
                                                                 {PassKind::kBackward, 0, 0, 0}}});
  const Simulation result = run(schedule, model_of(2));
  EXPECT_EQ(events(result, 0), (std::vector<Event>{{0, 0, 0},
                                                   {100'000, 0, 10},
                                                   {100'000, 1'000, 0},
                                                   {200'000, 1'000, 10},
                                                   {200'000, 0, 0},
                                                   {200'000, 0, 50},
                                                   {100'000, 1'000, 0},
                                                   {100'000, 1'000, 50},
                                                   {0, 0, 0}}));
}

TEST(Memory, KeepsWeightsGradientsAndOptimizerAllTheTime) {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 3;
  const Simulation result = run(make_schedule("interleaved", request), model_of(4));
  for (const MemorySample& sample : result.curve.ranks[1]) {  // stages 1 and 3
    EXPECT_EQ(of(sample.bytes, MemoryClass::kWeights), 6'000'000);
    EXPECT_EQ(of(sample.bytes, MemoryClass::kGradients), 12'000'000);
    EXPECT_EQ(of(sample.bytes, MemoryClass::kOptimizer), 24'000'000);
  }
}

TEST(Memory, SavesNothingInForwardsAlone) {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 3;
  const Simulation result = run(forward_only(make_schedule("1f1b", request)), model_of(2));
  EXPECT_EQ(of(result.memory[0].by_class, MemoryClass::kActivations), 0);
  EXPECT_EQ(of(result.memory[0].by_class, MemoryClass::kBoundary), 1'000);
}

TEST(Memory, PeaksAtTheInFlightCountOfOneForwardOneBackward) {
  ScheduleRequest request;
  request.ranks = 4;
  request.microbatches = 8;
  const Simulation result = run(make_schedule("1f1b", request), model_of(4));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const MemoryPeaks& peaks = result.memory[rank];
    const auto in_flight = static_cast<std::int64_t>(4 - rank);
    EXPECT_EQ(of(peaks.by_class, MemoryClass::kActivations), in_flight * 100'000);
    EXPECT_EQ(of(peaks.by_class, MemoryClass::kBoundary), 1'000);
    EXPECT_EQ(of(peaks.by_class, MemoryClass::kWorkspace), 50);
    EXPECT_EQ(of(peaks.at_total_peak, MemoryClass::kActivations), in_flight * 100'000);
  }
}

TEST(Memory, EndsWhereItBeganAndReportsThePeaksOfItsCurve) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const Simulation result = run(schedule, model_of(schedule.num_stages()));
    ASSERT_EQ(result.memory.size(), schedule.ranks.size());
    for (std::size_t rank = 0; rank < result.memory.size(); ++rank) {
      const std::vector<MemorySample>& samples = result.curve.ranks[rank];
      EXPECT_EQ(samples.front().bytes, samples.back().bytes);
      EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end(),
                                 [](const auto& a, const auto& b) { return a.time < b.time; }));
      BytesByClass highest{};
      std::int64_t total = 0;
      for (const MemorySample& sample : samples) {
        for (std::size_t c = 0; c < highest.size(); ++c) {
          EXPECT_GE(sample.bytes[c], 0);
          highest[c] = std::max(highest[c], sample.bytes[c]);
        }
        total = std::max(total, total_bytes(sample.bytes));
      }
      EXPECT_EQ(result.memory[rank].by_class, highest);
      EXPECT_EQ(result.memory[rank].total, total);
      EXPECT_EQ(total_bytes(result.memory[rank].at_total_peak), total);
    }
  });
}

TEST(Memory, CountsKeysAndValuesOfSlicesAndTheirGradients) {
  constexpr int kSlices = 4;
  for (const bool measured : {false, true}) {
    MemoryModel model = model_of(3);
    for (StageMemory& stage : model.stages) {
      stage.kv_cache = 10'000;
      stage.kv_gradient = 20'000;
      // As of a stage of two layers: all gradients of the upper layer, less the last slice's, and
      // all of the lower one.
      if (measured) stage.last_slice.kv_gradient = (2 * kSlices - 1) * 10'000;
    }
    ScheduleRequest request;
    request.ranks = 3;
    request.microbatches = 5;
    request.slices = kSlices;
    const Schedule schedule = make_schedule("1f1b", request);
    const Simulation result = run(schedule, model);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const auto in_flight = static_cast<std::int64_t>(3 - rank);
      const BytesByClass& peaks = result.memory[rank].by_class;
      EXPECT_EQ(of(peaks, MemoryClass::kActivations), in_flight * kSlices * 100'000);
      EXPECT_EQ(of(peaks, MemoryClass::kKvCache), in_flight * kSlices * 10'000);
      EXPECT_EQ(of(peaks, MemoryClass::kKvGradient),
                measured ? (2 * kSlices - 1) * 10'000 : kSlices * 20'000);
      const BytesByClass& after = result.curve.ranks[rank].back().bytes;
      EXPECT_EQ(of(after, MemoryClass::kKvCache), 0);
      EXPECT_EQ(of(after, MemoryClass::kKvGradient), 0);
    }
    const Simulation forwards = run(forward_only(schedule), model);
    EXPECT_EQ(of(forwards.memory[0].by_class, MemoryClass::kKvCache), kSlices * 10'000);
    EXPECT_EQ(of(forwards.curve.ranks[0].back().bytes, MemoryClass::kKvCache), 0);
    EXPECT_EQ(of(forwards.memory[0].by_class, MemoryClass::kKvGradient), 0);
  }
}

TEST(Memory, RefusesAModelOfOtherStages) {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 1;
  EXPECT_THROW(run(make_schedule("1f1b", request), model_of(3)), InternalError);
}

}  // namespace
}  // namespace sluice
