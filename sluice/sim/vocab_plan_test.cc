#include "sluice/sim/vocab_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/cost_file.h"
#include "sluice/sim/offload_schedule.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

constexpr VocabForm kForms[] = {VocabForm::kParallel1, VocabForm::kParallel2};

int stretch(VocabForm form) { return form == VocabForm::kParallel1 ? 2 : 1; }

/// Times of one microbatch on one rank.
struct Times {
  double forward = 1.0;
  double backward = 2.0;
  double vocab = 0.35;
  double barrier = 0.0;
  double broadcast = 0.0;
};

struct Planned {
  Schedule schedule;
  Program program;
  CostModel cost;
  Simulation simulation;

  double makespan() const {
    return static_cast<double>(simulation.bubble.makespan) * cost.unit_per_tick;
  }
};

Planned plan(std::string_view name, int ranks, int microbatches, VocabForm form, const Times& times,
             int slices = 1) {
  ScheduleRequest request{.ranks = ranks, .microbatches = microbatches, .slices = slices};
  CostFile costs;
  costs.times.forward = {times.forward};
  costs.times.backward_input = {times.backward / 2.0};
  costs.times.backward_weight = {times.backward / 2.0};
  costs.vocab_pass.assign(static_cast<std::size_t>(ranks), times.vocab);
  costs.vocab_barrier = {times.barrier};
  Planned planned;
  const Placement placement = make_schedule(name, request).placement;
  planned.cost = cost_from_rank_times(costs.times, placement, slices);
  add_vocab_costs(costs, form, planned.cost);
  planned.cost.collective_ticks[static_cast<std::size_t>(Collective::kBroadcastHidden)] =
      static_cast<std::int64_t>(times.broadcast / planned.cost.unit_per_tick);
  request.ticks = to_pass_ticks(planned.cost);
  const auto make = [&](int count) {
    request.microbatches = count;
    return make_schedule(name, request);
  };
  planned.schedule = plan_vocabulary(make, microbatches, form, planned.cost);
  planned.program = lower(planned.schedule);
  planned.simulation = simulate(planned.program, planned.cost);
  return planned;
}

std::vector<Pass> vocab_passes(const std::vector<Pass>& passes) {
  std::vector<Pass> found;
  for (Pass pass : passes) {
    const bool is_vocab =
        pass.kind == PassKind::kEmbedForward || pass.kind == PassKind::kEmbedBackward ||
        pass.kind == PassKind::kVocabForward || pass.kind == PassKind::kVocabBackward;
    pass.stage = 0;
    if (is_vocab) found.push_back(pass);
  }
  return found;
}

// Most units between S and T of one rank.
int most_pending(const std::vector<Pass>& passes) {
  int pending = 0, most = 0;
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kVocabForward) most = std::max(most, ++pending);
    if (pass.kind == PassKind::kVocabBackward) --pending;
  }
  return most;
}

TEST(VocabPlan, OfEverySchedulePassesItsProof) {
  for (const ScheduleInfo& info : schedule_library()) {
    for (const VocabForm form : kForms) {
      for (const auto& [ranks, microbatches, parts] :
           {std::tuple{1, 3, 1}, {2, 1, 1}, {3, 2, 1}, {4, 8, 1}, {4, 9, 1}, {2, 4, 3}}) {
        const int slices = info.slices_itself ? ranks * parts : parts;
        SCOPED_TRACE(fmt::format("{} {}, {} ranks, {} microbatches, {} slices", info.name,
                                 to_string(form), ranks, microbatches, slices));
        const Planned planned =
            plan(info.name, ranks, microbatches, form, {.barrier = 0.2, .broadcast = 0.1}, slices);
        const std::vector<Problem> problems = validate(planned.schedule);
        EXPECT_TRUE(problems.empty()) << problems.front().text;
        const std::vector<Problem> unproved = verify(planned.program);
        EXPECT_TRUE(unproved.empty()) << unproved.front().text;
        const Program evaluation = lower(forward_only(planned.schedule));
        const std::vector<Problem> of_evaluation = verify(evaluation);
        EXPECT_TRUE(of_evaluation.empty()) << of_evaluation.front().text;
        const std::vector<Pass> first = vocab_passes(planned.schedule.ranks[0]);
        EXPECT_EQ(first.size(), static_cast<std::size_t>(4 * microbatches * slices));
        for (const std::vector<Pass>& passes : planned.schedule.ranks) {
          EXPECT_EQ(vocab_passes(passes), first);
          EXPECT_LE(most_pending(passes), stretch(form) + 1);
        }
      }
    }
  }
}

TEST(VocabPlan, OfSlicesGoesWithOffloadAndExchange) {
  for (const ScheduleInfo& info : schedule_library()) {
    if (info.offload != "none" || info.name == "dualpipe-v") continue;
    for (const VocabForm form : kForms) {
      for (const auto& [ranks, microbatches, slices] : {std::tuple{3, 3, 6}, {4, 2, 8}}) {
        SCOPED_TRACE(fmt::format("{} {}, {} ranks", info.name, to_string(form), ranks));
        Planned planned =
            plan(info.name, ranks, microbatches, form, {.barrier = 0.2, .broadcast = 0.1}, slices);
        set_offload_ratio(planned.cost, 0.3);
        const Schedule& plain = planned.schedule;
        const OffloadPlan copies = offload_schedule(
            plain, planned.cost, parse_offload("offload", "full", plain.placement), 0.0);
        EXPECT_TRUE(has_offload(copies.schedule));
        Program program = lower(copies.schedule);
        program.exchange = plan_exchange(program, ExchangeMode::kBalanced,
                                         causal_costs(program.num_stages(), slices));
        EXPECT_FALSE(program.exchange.empty());
        const std::vector<Problem> problems = verify(program);
        EXPECT_TRUE(problems.empty()) << problems.front().text;
        const Simulation together = simulate(program, planned.cost);
        const auto most = [](const Simulation& simulation) {
          return *std::max_element(simulation.peak_saved.begin(), simulation.peak_saved.end());
        };
        const auto total = [](const Simulation& simulation) {
          return std::accumulate(simulation.peak_saved.begin(), simulation.peak_saved.end(),
                                 std::int64_t{0});
        };
        EXPECT_LE(most(together), most(planned.simulation));
        EXPECT_LT(total(together), total(planned.simulation));
      }
    }
  }
}

TEST(VocabPlan, HoldsOneMicrobatchMorePerBarrierUnder1F1B) {
  for (const int p : {2, 3, 4, 5, 8, 13, 16, 32}) {
    for (const VocabForm form : kForms) {
      for (const double backward : {1.9, 2.0}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, backward {}", p, to_string(form), backward));
        const int m = 2 * p + 2;
        const Planned planned =
            plan("1f1b", p, m, form, {.backward = backward, .barrier = 0.3, .broadcast = 0.1});
        for (int rank = 0; rank < p; ++rank) {
          EXPECT_EQ(planned.simulation.peak_saved[static_cast<std::size_t>(rank)],
                    std::min(m, p - rank + stretch(form)))
              << "rank " << rank;
        }
      }
    }
  }
}

// Counted until the backward for the input, in microbatches: two chunks each.
TEST(VocabPlan, HoldsOneMicrobatchMorePerBarrierUnderVHalf) {
  for (const int p : {4, 6, 8, 12, 16, 32}) {
    for (const VocabForm form : kForms) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", p, to_string(form)));
      const Planned planned = plan("v-half", p, p + 4, form, {.barrier = 0.2});
      for (const std::int64_t peak : planned.simulation.peak_until_input) {
        EXPECT_LE(peak, 2 * (p / 2 + 1 + stretch(form)));
      }
    }
  }
}

// Beyond plain 1F1B's (p-1)(F+B), in forwards, however many ranks there are.
TEST(VocabPlan, AddsABoundedBubbleTo1F1B) {
  for (const int p : {4, 8, 16, 32}) {
    for (const double backward : {1.6, 1.8, 1.9, 2.0, 2.1, 2.2}) {
      for (const auto& [broadcast, barrier] :
           {std::pair{0.0, 0.0}, {0.1, 0.2}, {0.3, 0.7}, {0.0, 1.0}}) {
        // The search takes its time: of many ranks the corner cases alone.
        if (p > 8 && (broadcast != 0.3 || backward < 1.85 || backward > 2.05)) continue;
        for (const VocabForm form : kForms) {
          const Planned planned =
              plan("1f1b", p, 4 * p, form,
                   {.backward = backward, .barrier = barrier, .broadcast = broadcast});
          const double extra =
              planned.makespan() - 4 * p * (1.0 + backward + 0.35) - (p - 1) * (1.0 + backward);
          const double bound = barrier == 0.0 ? 0.7 : form == VocabForm::kParallel1 ? 2.4 : 1.0;
          EXPECT_LE(extra, bound + 1e-9)
              << p << " ranks, backward " << backward << ", broadcast " << broadcast << ", barrier "
              << barrier << ", " << to_string(form);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice
