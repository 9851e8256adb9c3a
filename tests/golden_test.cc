// Schedules against published and replayed numbers: generate, lower, verify, simulate. The data and
// its sources stand in tests/golden/*.json; what each row reached is kept as a property of the test
// (--gtest_output=xml:FILE shows it).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/program/lower.h"
#include "sluice/program/program_editor_for_tests.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/cost_file.h"
#include "sluice/sim/simulate.h"
#include "sluice/sim/vocab_plan.h"

namespace sluice {
namespace {

using nlohmann::json;

// The rows of a table; by value, so that a loop over them owns what it reads.
std::vector<json> load(const std::string& name, const char* table = "rows") {
  std::ifstream file(std::string(SLUICE_GOLDEN_DIR) + "/" + name);
  if (!file) throw std::runtime_error("cannot open golden file " + name);
  const auto rows = json::parse(file).at(table).get<std::vector<json>>();
  if (rows.empty()) throw std::runtime_error("no rows in golden file " + name);
  return rows;
}

struct Prediction {
  Program program;
  Simulation simulation;
  CostModel cost;
  int num_chunks = 1;

  double in_units(std::int64_t ticks) const {
    return static_cast<double>(ticks) * cost.unit_per_tick;
  }
  /// Ticks of a number of units; exact for decimals of the tables.
  std::int64_t ticks(double units) const { return std::llround(units / cost.unit_per_tick); }
  std::int64_t longest_span() const {
    return *std::max_element(simulation.own_span.begin(), simulation.own_span.end());
  }
  static std::int64_t highest(const std::vector<std::int64_t>& counts) {
    return *std::max_element(counts.begin(), counts.end());
  }
};

Prediction predict(std::string_view name, ScheduleRequest request, const RankTimes& times = {}) {
  // The placement depends on sizes alone; generators that plan with times are asked again with
  // them.
  Schedule schedule = make_schedule(name, request);
  request.ticks = to_pass_ticks(cost_from_rank_times(times, schedule.placement, request.slices));
  schedule = make_schedule(name, request);
  Prediction result;
  result.program = lower(schedule);
  EXPECT_TRUE(verify(result.program).empty());
  result.cost = cost_from_rank_times(times, schedule.placement, request.slices);
  result.simulation = simulate(result.program, result.cost);
  result.num_chunks = schedule.num_stages() / schedule.num_ranks();
  return result;
}

ScheduleRequest sizes(int ranks, int microbatches, int chunks = 0, int group = 0) {
  ScheduleRequest request;
  request.ranks = ranks;
  request.microbatches = microbatches;
  request.chunks = chunks;
  request.group = group;
  return request;
}

RankTimes split_times(double forward, double input, double weight) {
  RankTimes times;
  times.forward = {forward};
  times.backward_input = {input};
  times.backward_weight = {weight};
  return times;
}

std::string label(const json& row) {
  std::string text;
  for (const char* key : {"schedule", "model", "method", "vocab", "ranks", "chunks", "microbatches",
                          "group", "I", "W"}) {
    if (row.contains(key)) text += fmt::format("{}{}", text.empty() ? "" : "_", row[key].dump());
  }
  text.erase(std::remove(text.begin(), text.end(), '"'), text.end());
  return text;
}

void note(const json& row, const std::string& figures) {
  testing::Test::RecordProperty(label(row), figures);
}

// --- unit cost ---

TEST(UnitCost, IsExactForSchedulesWithAClosedForm) {
  for (const json& row : load("unit_cost.json", "exact")) {
    SCOPED_TRACE(label(row));
    const Prediction result = predict(row["schedule"].get<std::string>(),
                                      sizes(row["ranks"], row["microbatches"], row["chunks"]));
    const Simulation& simulation = result.simulation;
    note(row, fmt::format("makespan {} peak {}", result.in_units(simulation.bubble.makespan),
                          static_cast<double>(Prediction::highest(simulation.peak_saved)) /
                              result.num_chunks));
    EXPECT_EQ(simulation.bubble.makespan, result.ticks(row["makespan"]));
    if (row.contains("span")) {
      EXPECT_EQ(result.longest_span(), result.ticks(row["span"]));
    }
    EXPECT_EQ(static_cast<double>(Prediction::highest(simulation.peak_saved)),
              row["peak"].get<double>() * result.num_chunks);
    if (row.contains("peak_until_input")) {
      EXPECT_EQ(static_cast<double>(Prediction::highest(simulation.peak_until_input)),
                row["peak_until_input"].get<double>() * result.num_chunks);
    }
  }
}

// Another legal reorder may differ by a cell: one pass of one stage. Less is welcome.
TEST(UnitCost, IsWithinOneCellForTheVFamily) {
  for (const json& row : load("unit_cost.json", "within_one_cell")) {
    SCOPED_TRACE(label(row));
    const Prediction result =
        predict(row["schedule"].get<std::string>(), sizes(row["ranks"], row["microbatches"]));
    const std::int64_t cell = result.cost.duration({PassKind::kForward, 0, 0, 0});
    const Simulation& simulation = result.simulation;
    note(row,
         fmt::format(
             "makespan {} span {} peak {}", result.in_units(simulation.bubble.makespan),
             result.in_units(result.longest_span()),
             static_cast<double>(Prediction::highest(simulation.peak_saved)) / result.num_chunks));
    EXPECT_LE(simulation.bubble.makespan, result.ticks(row["makespan"]) + cell);
    EXPECT_GE(simulation.bubble.makespan, simulation.bubble.work);
    if (row.contains("span")) {
      EXPECT_LE(result.longest_span(), result.ticks(row["span"]) + cell);
    }
    EXPECT_LE(static_cast<double>(Prediction::highest(simulation.peak_saved)),
              row["peak"].get<double>() * result.num_chunks);
  }
}

// --- unequal times ---

TEST(UnequalTimes, GiveThePublishedOrdersTheirBubbles) {
  for (const json& row : load("unequal_times.json")) {
    SCOPED_TRACE(label(row));
    const Prediction result = predict(row["schedule"].get<std::string>(),
                                      sizes(8, 16, row["chunks"]), split_times(1.0, 1.4, 0.6));
    const double bubble = 100.0 * result.simulation.bubble.bubble_fraction;
    note(row, fmt::format("{:.2f} % of {} %", bubble, row["bubble"].get<double>()));
    EXPECT_LE(bubble, row["bubble"].get<double>() + 0.1);
    if (row.contains("reordered")) {
      EXPECT_LE(Prediction::highest(result.simulation.peak_saved), 2 * row["peak"].get<int>());
    } else {
      EXPECT_GE(bubble, row["bubble"].get<double>() - 0.1);
    }
  }
}

// --- Zero Bubble ---

Prediction predict_zero_bubble(const json& row, std::string_view name, int chunks) {
  RankTimes times = split_times(row["F"], row["I"], row["W"]);
  times.message = row["p2p"];
  return predict(name, sizes(row["ranks"], row["microbatches"], chunks), times);
}

void note_rate(const json& row, const char* name, double rate) {
  testing::Test::RecordProperty(label(row) + "_" + name,
                                fmt::format("{:.4f} of {}", rate, row[name].get<double>()));
}

TEST(ZeroBubble, RateOfOneForwardOneBackwardIsThePublishedOne) {
  for (const json& row : load("zero_bubble.json")) {
    SCOPED_TRACE(label(row));
    const double rate = predict_zero_bubble(row, "1f1b", 1).simulation.bubble.span_bubble_fraction;
    note_rate(row, "1f1b", rate);
    EXPECT_NEAR(rate, row["1f1b"].get<double>(), 0.0001);
  }
}

// The paper's interleaved runs hide some of their messages: their rates are a little lower.
TEST(ZeroBubble, RateOfInterleavedIsNearThePublishedOne) {
  for (const json& row : load("zero_bubble.json")) {
    SCOPED_TRACE(label(row));
    const double rate = predict_zero_bubble(row, "interleaved", row["chunks_interleaved"])
                            .simulation.bubble.span_bubble_fraction;
    note_rate(row, "interleaved", rate);
    EXPECT_NEAR(rate, row["interleaved"].get<double>(), 0.004);
  }
}

TEST(ZeroBubble, HeuristicIsNoWorseThanThePublishedOne) {
  for (const json& row : load("zero_bubble.json")) {
    for (const char* name : {"zb-1p", "zb-2p"}) {
      SCOPED_TRACE(label(row) + " " + name);
      const Prediction result = predict_zero_bubble(row, name, 1);
      const double rate = result.simulation.bubble.span_bubble_fraction;
      note_rate(row, name, rate);
      EXPECT_LE(rate, row[name].get<double>() + 0.0001);
      // zb-1p keeps everything until W, zb-2p lets go of most of it after I, as in the paper.
      const bool one = std::string_view(name) == "zb-1p";
      const Simulation& simulation = result.simulation;
      EXPECT_LE(Prediction::highest(one ? simulation.peak_saved : simulation.peak_until_input),
                row["ranks"].get<int>() * (one ? 1 : 2));
    }
  }
}

// --- DualPipeV ---

bool is_pass(const ProgramEditor::Node* node, PassKind kind) {
  return node->action.kind == ActionKind::kPass && node->action.pass.kind == kind;
}

// Ties the two passes of every overlapped pair together: neither starts without the inputs of both,
// and what the forward makes is there only when the backward is over. A pair is a forward right
// before a full backward, once the rank has run its first backward.
Program fuse_pairs(const Program& program) {
  ProgramEditor editor(program);
  for (auto& list : editor.lists) {
    bool backward_seen = false;
    for (std::size_t k = 0; k < list.size(); ++k) {
      std::size_t next = k + 1;
      while (next < list.size() && list[next]->action.kind != ActionKind::kPass) ++next;
      if (backward_seen && is_pass(list[k], PassKind::kForward) && next < list.size() &&
          is_pass(list[next], PassKind::kBackward)) {
        // Between the two stand the send of the forward and the receive of the backward: receives,
        // pair, sends is the order of a pair.
        ProgramEditor::Node* forward = list[k];
        ProgramEditor::Node* backward = list[next];
        forward->dependencies.insert(forward->dependencies.end(), backward->dependencies.begin(),
                                     backward->dependencies.end());
        const auto rank_of = [&](const ProgramEditor::Node* node) {
          if (node == forward || node == backward) return 1;
          return node->action.kind == ActionKind::kReceive ? 0 : 2;
        };
        const auto at = [&](std::size_t i) {
          return list.begin() + static_cast<std::ptrdiff_t>(i);
        };
        std::stable_sort(at(k), at(next + 1),
                         [&](const auto* a, const auto* b) { return rank_of(a) < rank_of(b); });
        for (; list[k] != backward; ++k) continue;
        for (std::size_t send = k + 1; send <= next; ++send) {
          list[send]->dependencies.push_back(backward);
        }
      }
      backward_seen |=
          is_pass(list[k], PassKind::kBackward) || is_pass(list[k], PassKind::kBackwardInput);
    }
  }
  return editor.build();
}

TEST(DualPipeV, WithFusedPairsIsItsReplayAndWithoutIsShorter) {
  for (const json& row : load("dualpipe_v.json")) {
    SCOPED_TRACE(label(row));
    // A rank holds two stages.
    const double input = row["B"].get<double>() - row["W"].get<double>();
    const Prediction result = predict(
        "dualpipe-v", sizes(row["ranks"], row["microbatches"]),
        split_times(2.0 * row["F"].get<double>(), 2.0 * input, 2.0 * row["W"].get<double>()));
    const Simulation& simulation = result.simulation;
    const Simulation fused = simulate(fuse_pairs(result.program), result.cost);
    note(row, fmt::format("fused {} of {}, one after the other {}",
                          result.in_units(fused.bubble.makespan), row["makespan"].get<double>(),
                          result.in_units(simulation.bubble.makespan)));
    EXPECT_EQ(fused.bubble.makespan, result.ticks(row["makespan"]));
    EXPECT_LE(simulation.bubble.makespan, fused.bubble.makespan);
    EXPECT_EQ(simulation.bubble.work, result.ticks(row["work"]));
    for (const std::int64_t peak : simulation.peak_saved) EXPECT_EQ(peak, row["peak"]);
  }
}

// --- GIS ---

TEST(Gis, HasTheBubblesAndPeaksOfItsReplay) {
  for (const json& row : load("gis_groups.json")) {
    SCOPED_TRACE(label(row));
    const auto chunks = row["chunks"].get<double>();
    const Prediction result =
        predict("gis", sizes(row["ranks"], row["microbatches"], row["chunks"], row["group"]),
                split_times(chunks * row["F"].get<double>(), chunks * row["I"].get<double>(),
                            chunks * row["W"].get<double>()));
    const BubbleReport& bubble = result.simulation.bubble;
    note(row, fmt::format("bubble {} of {}", result.in_units(bubble.makespan - bubble.work),
                          row["bubble"].get<double>()));
    EXPECT_EQ(bubble.makespan - bubble.work, result.ticks(row["bubble"]));
    if (row.contains("peaks")) {
      EXPECT_EQ(result.simulation.peak_saved, row["peaks"].get<std::vector<std::int64_t>>());
    }
  }
}

// --- closed forms over a sweep ---

void expect_bubble(const Prediction& result, double units) {
  const BubbleReport& bubble = result.simulation.bubble;
  EXPECT_EQ(bubble.makespan - bubble.work, result.ticks(units))
      << result.in_units(bubble.makespan - bubble.work) << " instead of " << units;
}

// Calls check(p, m, v) for p, v and microbatches that are a multiple of p.
template <typename Check>
void sweep(const Check& check) {
  for (const int p : {1, 2, 3, 4, 5, 8}) {
    for (const int v : {1, 2, 3, 4}) {
      for (const int rounds : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} microbatches, {} chunks", p, rounds * p, v));
        check(p, rounds * p, v);
      }
    }
  }
}

TEST(ClosedForms, HoldForOneChunk) {
  sweep([](int p, int m, int v) {
    if (v != 1) return;
    for (const auto& [forward, input, weight] :
         {std::tuple{1.0, 1.0, 1.0}, {1.0, 1.4, 0.6}, {0.7, 1.1, 0.9}}) {
      const RankTimes times = split_times(forward, input, weight);
      const double bubble = (p - 1) * (forward + input + weight);
      expect_bubble(predict("gpipe", sizes(p, m), times), bubble);
      expect_bubble(predict("1f1b", sizes(p, m), times), bubble);
      // Fewer microbatches than ranks change nothing.
      expect_bubble(predict("1f1b", sizes(p, (m + 1) / 2), times), bubble);
    }
    expect_bubble(predict("zb-1p", sizes(p, m)), p - 1);
  });
}

TEST(ClosedForms, HoldForInterleavedAndBreadthFirst) {
  sweep([](int p, int m, int v) {
    for (const auto& [forward, input, weight] : {std::tuple{1.0, 1.0, 1.0}, {1.2, 1.8, 0.6}}) {
      const RankTimes times = split_times(forward, input, weight);
      const double bubble = (p - 1) * (forward + input + weight) / v;
      expect_bubble(predict("interleaved", sizes(p, m, v), times), bubble);
      expect_bubble(predict("breadth-first", sizes(p, m, v), times), bubble);
    }
  });
}

TEST(ClosedForms, HoldForGisAndGisH) {
  sweep([](int p, int m, int v) {
    for (const auto& [forward, input, weight] : {std::tuple{1.0, 1.0, 1.0}, {1.2, 1.44, 0.96}}) {
      expect_bubble(predict("gis", sizes(p, m, v), split_times(forward, input, weight)),
                    (p - 1) * (forward + input) / v);
    }
    for (int g = (p + 1) / 2; g <= p; ++g) {
      for (const int groups : {1, 3}) {
        const Prediction result = predict("gis", sizes(p, groups * g, v, g));
        expect_bubble(result, ((p - 1) * 2.0 + (p - g) * (v - 1)) / v);
      }
    }
  });
}

TEST(ClosedForms, HoldForSplitBackwardsOfFewMicrobatches) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= p; ++m) {
      SCOPED_TRACE(fmt::format("{} ranks, {} microbatches", p, m));
      const Prediction result = predict("zb-1p", sizes(p, m));
      EXPECT_EQ(result.simulation.bubble.makespan, result.ticks((m + p - 1) * 2.0 + 1.0));
    }
  }
}

// --- peaks ---

TEST(Peaks, AreTheInFlightCountsOfTheirRules) {
  sweep([](int p, int m, int v) {
    const auto counts = [](const Prediction& result) { return result.simulation.peak_saved; };
    std::vector<std::int64_t> one_f_one_b;
    std::vector<std::int64_t> gis;
    for (int i = 0; i < p; ++i) {
      one_f_one_b.push_back(std::min(m, p - i));
      gis.push_back(p * (v - 1) + p - i);
    }
    EXPECT_EQ(counts(predict("gis", sizes(p, m, v))), gis);
    EXPECT_EQ(counts(predict("breadth-first", sizes(p, m, v))),
              std::vector<std::int64_t>(static_cast<std::size_t>(p), m * v));
    if (v > 1) {
      EXPECT_EQ(counts(predict("interleaved", sizes(p, m, v)))[0], std::min(m * v, p * v + p - 1));
      return;
    }
    EXPECT_EQ(counts(predict("1f1b", sizes(p, m))), one_f_one_b);
    EXPECT_EQ(counts(predict("gpipe", sizes(p, m))),
              std::vector<std::int64_t>(static_cast<std::size_t>(p), m));
    EXPECT_LE(Prediction::highest(counts(predict("zb-1p", sizes(p, m)))), p);
    EXPECT_LE(Prediction::highest(counts(predict("zb-2p", sizes(p, m)))), 2 * p);
  });
}

TEST(Peaks, OfGisFallWithTheGroup) {
  for (int p = 2; p <= 8; ++p) {
    for (const int v : {2, 3}) {
      for (int g = (p + 1) / 2; g <= p; ++g) {
        SCOPED_TRACE(fmt::format("{} ranks, {} chunks, group {}", p, v, g));
        std::vector<std::int64_t> peaks;
        for (int i = 0; i < p; ++i) peaks.push_back(g * (v - 1) + p - i);
        EXPECT_EQ(predict("gis", sizes(p, 4 * g, v, g)).simulation.peak_saved, peaks);
      }
    }
  }
}

TEST(Peaks, OfTheVFamilyStayUnderTheirFormulas) {
  for (int p = 2; p <= 8; ++p) {
    for (const int m : {2 * p, 2 * p + 1}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} microbatches", p, m));
      // In half-stage activations: a microbatch on a rank is two.
      const auto peak = [&](const char* name) {
        return Prediction::highest(predict(name, sizes(p, m)).simulation.peak_saved);
      };
      EXPECT_LE(peak("zb-v"), 2 * p);
      EXPECT_LE(peak("v-half"), 2 * ((p + 2) / 2));
      EXPECT_LE(peak("v-min"), 2 * ((p + 4) / 3));
    }
  }
}

// --- measured on GPUs ---

TEST(MeasuredIterations, OfOneForwardOneBackwardArePredictedFromTheirPassTimes) {
  for (const json& row : load("one_f_one_b_a100.json")) {
    SCOPED_TRACE(label(row));
    RankTimes times;
    times.forward = row["forward_us"].get<std::vector<double>>();
    times.backward = row["backward_us"].get<std::vector<double>>();
    times.message = row["p2p_us"];
    const Prediction result =
        predict("1f1b", sizes(static_cast<int>(times.forward.size()), row["microbatches"]), times);
    const double predicted = result.in_units(result.simulation.bubble.makespan) / 1000.0;
    const double ratio = predicted / row["iteration_ms"].get<double>();
    note(row, fmt::format("{:.1f} ms, {:.4f} of measured", predicted, ratio));
    EXPECT_GT(ratio, 0.985);
    EXPECT_LE(ratio, 1.0);  // the optimizer is not in the times
  }
}

// Milliseconds of an iteration from the pass times of a row.
double predict_vocab_row(const json& row) {
  const auto method = row["method"].get<std::string>();
  CostFile costs;
  costs.times.forward = row["forward_us"].get<std::vector<double>>();
  costs.times.backward = row["backward_us"].get<std::vector<double>>();
  costs.times.message = row["p2p_us"][0];
  costs.vocab_pass = row["vocab_pass_us"].get<std::vector<double>>();
  costs.embed_forward = row["embed_forward_us"].get<std::vector<double>>();
  costs.embed_backward = row["embed_backward_us"].get<std::vector<double>>();
  ScheduleRequest request =
      sizes(static_cast<int>(costs.times.forward.size()), row["microbatches"]);
  const Placement placement = make_schedule("1f1b", request).placement;
  CostModel cost = cost_from_rank_times(costs.times, placement, 1);
  const auto makespan_of = [&](const Schedule& schedule) {
    const Program program = lower(schedule);
    EXPECT_TRUE(verify(program).empty());
    return static_cast<double>(simulate(program, cost).bubble.makespan) * cost.unit_per_tick /
           1000.0;
  };
  if (!method.starts_with("vocab")) return makespan_of(make_schedule("1f1b", request));
  const VocabForm form = method == "vocab_1" ? VocabForm::kParallel1 : VocabForm::kParallel2;
  add_vocab_costs(costs, form, cost);
  const auto make = [&](int num_microbatches) {
    request.microbatches = num_microbatches;
    return make_schedule("1f1b", request);
  };
  return makespan_of(plan_vocabulary(make, row["microbatches"], form, cost));
}

// Every key of `times`, the fastest first.
std::vector<std::string> fastest_first(const std::map<std::string, double>& times) {
  std::vector<std::string> names;
  for (const auto& [name, time] : times) names.push_back(name);
  std::sort(names.begin(), names.end(),
            [&](const auto& a, const auto& b) { return times.at(a) < times.at(b); });
  return names;
}

TEST(MeasuredIterations, OfAShardedVocabularyArePredictedFromTheirPassTimes) {
  std::map<int, std::map<std::string, double>> measured, predicted;
  for (const json& row : load("vocab_parallel_a100.json")) {
    SCOPED_TRACE(label(row));
    const double time = predict_vocab_row(row);
    const double ratio = time / row["iteration_ms"].get<double>();
    note(row, fmt::format("{:.1f} ms, {:.4f} of measured", time, ratio));
    measured[row["vocab"]][row["method"]] = row["iteration_ms"];
    predicted[row["vocab"]][row["method"]] = time;
    if (!row["method"].get<std::string>().starts_with("vocab")) continue;
    // The table has no barriers: prediction must not take longer.
    EXPECT_GT(ratio, 0.975);
    EXPECT_LE(ratio, 1.0);
  }
  for (const auto& [vocab, times] : measured) {
    EXPECT_EQ(fastest_first(predicted[vocab]), fastest_first(times)) << "vocabulary " << vocab;
  }
}

}  // namespace
}  // namespace sluice
