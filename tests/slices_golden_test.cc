// Sliced schedules against published, replayed and closed-form numbers; data and sources in
// tests/golden/slimpipe.json and slice_memory.json.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/exchange_cost.h"
#include "sluice/sim/simulate.h"
#include "sluice/sim/slice_memory.h"

namespace sluice {
namespace {

using nlohmann::json;

std::vector<json> load(const std::string& name, const char* table) {
  std::ifstream file(std::string(SLUICE_GOLDEN_DIR) + "/" + name);
  if (!file) throw std::runtime_error("cannot open golden file " + name);
  const auto rows = json::parse(file).at(table).get<std::vector<json>>();
  if (rows.empty()) throw std::runtime_error("no rows in golden file " + name);
  return rows;
}

ScheduleRequest sizes(const json& row) {
  ScheduleRequest request;
  request.ranks = row.at("ranks");
  request.microbatches = row.at("microbatches");
  request.slices = row.at("slices");
  request.chunks = row.value("chunks", 0);
  return request;
}

RankTimes split_times(double forward, double input, double weight) {
  RankTimes times;
  times.forward = {forward};
  times.backward_input = {input};
  times.backward_weight = {weight};
  return times;
}

Simulation run(const Schedule& schedule, const CostModel& cost,
               ExchangeMode mode = ExchangeMode::kNone, double* kv_slices = nullptr) {
  Program program = lower(schedule);
  if (mode != ExchangeMode::kNone) {
    program.exchange = plan_exchange(program, mode, exchange_costs(cost));
  }
  EXPECT_TRUE(verify(program).empty());
  if (kv_slices != nullptr) *kv_slices = program.exchange.num_forward_kv_slices();
  return simulate(program, cost);
}

double closed_form(const ScheduleRequest& request) {
  const double rest = request.ranks - 1.0;
  return rest /
         (static_cast<double>(request.microbatches) * request.slices * std::max(1, request.chunks) +
          rest);
}

std::int64_t highest(const std::vector<std::int64_t>& counts) {
  return *std::max_element(counts.begin(), counts.end());
}

TEST(SliceUnitCost, IsWhatTheClosedFormsSay) {
  for (const json& row : load("slimpipe.json", "unit_cost")) {
    SCOPED_TRACE(row.dump());
    const ScheduleRequest request = sizes(row);
    const Schedule schedule = make_schedule(row["schedule"].get<std::string>(), request);
    const CostModel cost = cost_from_rank_times({}, schedule.placement, request.slices);
    const Simulation simulation = run(schedule, cost);
    EXPECT_EQ(simulation.bubble.makespan,
              std::llround(row["makespan"].get<double>() / cost.unit_per_tick));
    EXPECT_EQ(static_cast<double>(highest(simulation.peak_saved)),
              row["peak"].get<double>() * request.slices * request.chunks);
  }
}

TEST(SliceV, HasTheReplayedBubblesAtEqualMemory) {
  for (const json& row : load("slimpipe.json", "slice_v")) {
    SCOPED_TRACE(row.dump());
    const ScheduleRequest request = sizes(row);
    const Schedule schedule = make_schedule("slice-v", request);
    const auto simulated = [&](const RankTimes& times) {
      return run(schedule, cost_from_rank_times(times, schedule.placement, request.slices));
    };
    const Simulation alike = simulated(split_times(1, 1, 1));
    EXPECT_NEAR(100 * alike.bubble.bubble_fraction, row["alike"].get<double>(), 0.1);
    EXPECT_DOUBLE_EQ(alike.bubble.span_bubble_fraction, 0.0);
    const Simulation unlike = simulated(split_times(1, 1.4, 0.6));
    EXPECT_NEAR(100 * unlike.bubble.bubble_fraction, row["unlike"].get<double>(), 0.1);
    for (const std::int64_t peak : alike.peak_saved) {
      EXPECT_EQ(static_cast<double>(peak), row["peak"].get<double>() * request.slices * 2);
    }
  }
}

TEST(SlimPipe, HoldsTheKnownCountsAndTheExactBubbleWithEqualWork) {
  for (const json& row : load("slimpipe.json", "in_flight")) {
    SCOPED_TRACE(row.dump());
    const ScheduleRequest request = sizes(row);
    const Schedule schedule = make_schedule("slimpipe", request);
    const Simulation simulation =
        run(schedule, cost_from_rank_times({}, schedule.placement, request.slices));
    EXPECT_EQ(simulation.peak_saved, row["peaks"].get<std::vector<std::int64_t>>());
    // (p-1) / (m n v + p-1) of the makespan is idle, exactly.
    const std::int64_t tasks = std::int64_t{request.microbatches} * request.slices * request.chunks;
    EXPECT_EQ(simulation.bubble.makespan * tasks,
              simulation.bubble.work * (tasks + request.ranks - 1));
    EXPECT_NEAR(simulation.bubble.bubble_fraction, closed_form(request), 1e-12);
    EXPECT_NEAR(100 * simulation.bubble.bubble_fraction, row["bubble"].get<double>(), 0.005);
  }
}

TEST(Seq1F1B, KeepsItsBubbleWhenThePartsOfTheBackwardDiffer) {
  for (const json& row : load("slimpipe.json", "seq1f1b")) {
    const ScheduleRequest request{.ranks = 8, .microbatches = 16, .slices = row["slices"]};
    const Schedule schedule = make_schedule("seq1f1b", request);
    const Simulation simulation =
        run(schedule,
            cost_from_rank_times(split_times(1, 1.4, 0.6), schedule.placement, request.slices));
    EXPECT_NEAR(100 * simulation.bubble.bubble_fraction, row["bubble"].get<double>(), 0.1);
  }
}

TEST(AttentionExchange, BalancesToTheClosedFormForALittleMoreThanThePublishedRuleMoves) {
  for (const json& row : load("slimpipe.json", "exchange")) {
    SCOPED_TRACE(row.dump());
    const ScheduleRequest request = sizes(row);
    const Schedule schedule = make_schedule("slimpipe", request);
    const CostModel cost = cost_from_attention(1.0, 4.27, 0.0, schedule.placement, request.slices);
    double pairwise_kv = 0.0;
    double balanced_kv = 0.0;
    const Simulation none = run(schedule, cost);
    const Simulation pairwise = run(schedule, cost, ExchangeMode::kPairwise, &pairwise_kv);
    const Simulation balanced = run(schedule, cost, ExchangeMode::kBalanced, &balanced_kv);
    EXPECT_NEAR(100 * none.bubble.bubble_fraction, row["none"].get<double>(), 0.05);
    EXPECT_NEAR(100 * pairwise.bubble.bubble_fraction, row["pairwise"].get<double>(), 0.05);
    const double formula = closed_form(request);
    EXPECT_NEAR(balanced.bubble.bubble_fraction, formula, 1e-9) << "formula " << formula;
    if (request.ranks >= 8) {
      EXPECT_LE(balanced_kv, 1.4 * pairwise_kv);
    }
    RecordProperty(
        fmt::format("p{}_n{}_v{}", request.ranks, request.slices, request.chunks),
        fmt::format("{:.2f} {:.2f} {:.2f} % of {:.2f} %; K/V x {:.3f}",
                    100 * none.bubble.bubble_fraction, 100 * pairwise.bubble.bubble_fraction,
                    100 * balanced.bubble.bubble_fraction, 100 * formula,
                    balanced_kv / pairwise_kv));
  }
}

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

SliceMemoryShape shape_of(const json& row) {
  const bool large = row["model"] == "150B";
  SliceMemoryShape shape;
  shape.hidden = large ? 12288 : 8192;
  shape.intermediate = large ? 32768 : 28672;
  shape.num_layers = large ? 96 : 80;
  shape.key_value_width = 1024;
  shape.vocabulary = 128256;
  shape.sequence = row["sequence"];
  shape.num_microbatches = row["microbatches"];
  shape.tensor_parallel = row["tensor"];
  shape.context_parallel = row["context"];
  shape.ranks = row["ranks"];
  shape.chunks = row["chunks"];
  shape.slices = row["slices"];
  if (row.contains("kept")) shape.kept = KeptActivations::kMatrixInputs;
  return shape;
}

TEST(SliceMemoryFormula, GivesThePublishedPlansToTheirLastDigit) {
  for (const json& row : load("slice_memory.json", "rows")) {
    SCOPED_TRACE(row.dump());
    const SliceMemory memory = slice_memory(shape_of(row));
    const auto check = [&](const char* key, double value) {
      if (row.contains(key)) {
        EXPECT_EQ(fmt::format("{:.2f}", value), fmt::format("{:.2f}", row[key].get<double>()))
            << key;
      }
    };
    check("activations", memory.activations / kGiB);
    check("logits", memory.logits / kGiB);
    check("key_value_gradient", memory.key_value_gradient / kGiB);
    check("bubble_percent", 100 * memory.bubble_fraction);
  }
}

// The formula's share of a microbatch is what the simulator counts in slice-chunks.
TEST(SliceMemoryFormula, IsThePeakThatIsSimulated) {
  for (const json& row : load("slimpipe.json", "in_flight")) {
    const ScheduleRequest request = sizes(row);
    if (request.microbatches == 1) continue;  // never as many in flight as the formula expects
    SliceMemoryShape shape = shape_of(load("slice_memory.json", "rows").front());
    shape.ranks = request.ranks;
    shape.chunks = request.chunks;
    shape.slices = request.slices;
    const double peak = slice_memory(shape).activations;
    shape.ranks = shape.chunks = shape.slices = 1;
    const double whole = slice_memory(shape).activations;
    const double counted =
        static_cast<double>(std::min(request.slices * request.chunks + 2 * (request.ranks - 1),
                                     request.microbatches * request.slices * request.chunks));
    const double in_flight = row["peaks"][0].get<double>();
    EXPECT_EQ(in_flight, counted);
    if (in_flight < request.slices * request.chunks + 2 * (request.ranks - 1)) continue;
    EXPECT_NEAR(peak / whole, in_flight / (request.ranks * request.slices * request.chunks), 1e-12);
  }
}

}  // namespace
}  // namespace sluice
