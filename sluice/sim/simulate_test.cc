#include "sluice/sim/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "sluice/common/errors.h"
#include "sluice/program/library_for_tests.h"
#include "sluice/program/lower.h"

namespace sluice {
namespace {

using Counts = std::vector<std::int64_t>;

Schedule make(std::string_view name, int ranks, int microbatches) {
  ScheduleRequest request;
  request.ranks = ranks;
  request.microbatches = microbatches;
  return make_schedule(name, request);
}

// Unit times in whole ticks: a forward 2, an I 3, a W 4 ticks, so that sums tell them apart.
CostModel small_costs(const Schedule& schedule, std::int64_t message) {
  CostModel cost;
  cost.num_stages = schedule.num_stages();
  cost.num_slices = schedule.num_slices;
  const auto fill = [&](PassKind kind, std::int64_t ticks) {
    cost.ticks[static_cast<std::size_t>(kind)].assign(
        static_cast<std::size_t>(schedule.num_stages() * schedule.num_slices), ticks);
  };
  fill(PassKind::kForward, 2);
  fill(PassKind::kBackwardInput, 3);
  fill(PassKind::kBackwardWeight, 4);
  fill(PassKind::kBackward, 7);
  cost.message_ticks = message;
  return cost;
}

CostModel random_costs(const Schedule& schedule, std::mt19937& random) {
  CostModel cost = small_costs(schedule, static_cast<std::int64_t>(random() % 4));
  for (std::vector<std::int64_t>& row : cost.ticks) {
    for (std::int64_t& ticks : row) ticks = static_cast<std::int64_t>(random() % 10);
  }
  if (random() % 2 == 0) {
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      cost.message_ticks_of_rank.push_back(static_cast<std::int64_t>(random() % 4));
    }
  }
  cost.messages_occupy_link = random() % 2 == 0;
  return cost;
}

// "0F0 0-2" of every span of a rank's lane.
std::vector<std::string> spans(const Timeline& timeline, std::size_t rank, Lane lane) {
  std::vector<std::string> texts;
  for (const Span& span : timeline.ranks[rank]) {
    if (span.lane != lane || span.kind == ActionKind::kOptimizer) continue;
    texts.push_back(fmt::format("{} {}-{}", to_string(span.pass), span.begin, span.end));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Simulate, StartsEachPassWhenItsLaneAndItsInputsAllow) {
  const Schedule schedule = make("1f1b", 2, 2);
  const Simulation result =
      simulate(lower(schedule), small_costs(schedule, 1), {.record_timeline = true});
  EXPECT_EQ(spans(result.timeline, 0, Lane::kCompute),
            (Texts{"0F0 0-2", "0F1 2-4", "0B0 13-20", "0B1 22-29"}));
  EXPECT_EQ(spans(result.timeline, 1, Lane::kCompute),
            (Texts{"1F0 3-5", "1B0 5-12", "1F1 12-14", "1B1 14-21"}));
  EXPECT_EQ(spans(result.timeline, 0, Lane::kSendForward), (Texts{"0F0 2-3", "0F1 4-5"}));
  EXPECT_EQ(spans(result.timeline, 1, Lane::kReceiveForward), (Texts{"0F0 3-3", "0F1 5-5"}));
  EXPECT_EQ(spans(result.timeline, 0, Lane::kReceiveBackward), (Texts{"1B0 13-13", "1B1 22-22"}));
  EXPECT_EQ(result.bubble.makespan, 29);
  EXPECT_EQ(result.bubble.work, 18);
  EXPECT_EQ(result.busy, (Counts{18, 18}));
  EXPECT_EQ(result.own_span, (Counts{29, 18}));
  EXPECT_DOUBLE_EQ(result.bubble.bubble_fraction, 1.0 - 36.0 / 58.0);
  EXPECT_DOUBLE_EQ(result.bubble.span_bubble_fraction, 11.0 / 29.0);
  EXPECT_EQ(result.timeline.begin(), 0);
  EXPECT_EQ(result.timeline.end(), 29);
}

TEST(Simulate, LetsMessagesOverlapUnlessTheyOccupyTheLink) {
  const Schedule schedule = make("gpipe", 2, 3);
  CostModel cost = small_costs(schedule, 5);
  const Program program = lower(schedule);
  EXPECT_EQ(
      spans(simulate(program, cost, {.record_timeline = true}).timeline, 0, Lane::kSendForward),
      (Texts{"0F0 2-7", "0F1 4-9", "0F2 6-11"}));
  cost.messages_occupy_link = true;
  EXPECT_EQ(
      spans(simulate(program, cost, {.record_timeline = true}).timeline, 0, Lane::kSendForward),
      (Texts{"0F0 2-7", "0F1 7-12", "0F2 12-17"}));
}

TEST(Simulate, ChargesAMessageTheTimeOfItsSender) {
  const Schedule schedule = make("1f1b", 2, 1);
  CostModel cost = small_costs(schedule, 99);
  cost.message_ticks_of_rank = {1, 10};
  const Simulation result = simulate(lower(schedule), cost, {.record_timeline = true});
  EXPECT_EQ(spans(result.timeline, 1, Lane::kCompute), (Texts{"1F0 3-5", "1B0 5-12"}));
  EXPECT_EQ(spans(result.timeline, 0, Lane::kCompute), (Texts{"0F0 0-2", "0B0 22-29"}));
}

// Re-derives every start from the rules: the latest of what comes before on the lane and of what
// the pass depends on. Independent of the order in which the simulator visits actions.
TEST(Simulate, StartsEveryActionAtTheLatestOfItsConstraints) {
  std::mt19937 random(3);
  for_each_schedule([&](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const Program program = lower(schedule);
    const CostModel cost = random_costs(schedule, random);
    const Simulation result = simulate(program, cost, {.record_timeline = true});
    using Key = std::tuple<int, ActionKind, Pass>;
    std::map<Key, Span> found;
    for (int rank = 0; rank < program.num_ranks(); ++rank) {
      for (const Span& span : result.timeline.ranks[static_cast<std::size_t>(rank)]) {
        found[{rank, span.kind, span.pass}] = span;
      }
    }
    for (int rank = 0; rank < program.num_ranks(); ++rank) {
      const RankProgram& list = program.ranks[static_cast<std::size_t>(rank)];
      std::int64_t compute_free = 0;
      std::map<std::pair<int, Lane>, std::int64_t> link_free;
      for (std::size_t k = 0; k < list.actions.size(); ++k) {
        const Action& action = list.actions[k];
        const Span& span = found.at({rank, action.kind, action.pass});
        std::int64_t earliest = 0;
        for (const std::int32_t d : list.dependencies_of(k)) {
          const Action& input = list.actions[static_cast<std::size_t>(d)];
          earliest = std::max(earliest, found.at({rank, input.kind, input.pass}).end);
        }
        std::int64_t duration = 0;
        if (action.lane == Lane::kCopyOut || action.lane == Lane::kCopyIn) {
          EXPECT_GE(span.begin, earliest)
              << to_string(action, true);  // CopyLanes has its own tests
          continue;
        }
        if (action.kind == ActionKind::kReceive) {
          earliest = found.at({action.peer, ActionKind::kSend, action.pass}).end;
        } else if (action.kind == ActionKind::kSend) {
          duration = cost.message_duration(static_cast<std::size_t>(rank));
          std::int64_t& link = link_free[{action.peer, action.lane}];
          if (cost.messages_occupy_link) earliest = std::max(earliest, link);
          link = earliest + duration;
        } else {
          earliest = std::max(earliest, compute_free);
          if (action.kind == ActionKind::kPass) duration = cost.duration(action.pass);
          compute_free = earliest + duration;
        }
        EXPECT_EQ(span.begin, earliest) << to_string(action, true);
        EXPECT_EQ(span.end, earliest + duration) << to_string(action, true);
      }
    }
  });
}

TEST(Simulate, ReportsWhatTheTimelineShows) {
  std::mt19937 random(4);
  for_each_schedule([&](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const CostModel cost = random_costs(schedule, random);
    const Simulation result = simulate(lower(schedule), cost, {.record_timeline = true});
    std::int64_t longest_span = 0;
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::int64_t last = 0;
    for (std::size_t rank = 0; rank < result.timeline.ranks.size(); ++rank) {
      std::int64_t busy = 0;
      std::int64_t begin = std::numeric_limits<std::int64_t>::max();
      std::int64_t end = 0;
      for (const Span& span : result.timeline.ranks[rank]) {
        if (span.kind != ActionKind::kPass || span.lane != Lane::kCompute) continue;
        busy += span.end - span.begin;
        begin = std::min(begin, span.begin);
        end = std::max(end, span.end);
      }
      EXPECT_EQ(result.busy[rank], busy);
      EXPECT_EQ(result.own_span[rank], end - begin);
      first = std::min(first, begin);
      last = std::max(last, end);
      longest_span = std::max(longest_span, end - begin);
      EXPECT_TRUE(std::is_sorted(result.timeline.ranks[rank].begin(),
                                 result.timeline.ranks[rank].end(),
                                 [](const Span& a, const Span& b) { return a.begin < b.begin; }));
    }
    EXPECT_EQ(result.bubble.makespan, last - first);
    EXPECT_EQ(result.bubble.work, *std::max_element(result.busy.begin(), result.busy.end()));
    if (longest_span > 0) {
      EXPECT_NEAR(result.bubble.span_bubble_fraction,
                  1.0 - static_cast<double>(result.bubble.work) / static_cast<double>(longest_span),
                  1e-12);
    }
    // Recording changes nothing.
    EXPECT_EQ(simulate(lower(schedule), cost).bubble.makespan, result.bubble.makespan);
  });
}

TEST(Simulate, CountsWhatIsSavedUntilTheInputAndUntilTheWeightPass) {
  Schedule schedule = make("1f1b", 1, 2);
  schedule.ranks = {{{PassKind::kForward, 0, 0, 0},
                     {PassKind::kBackwardInput, 0, 0, 0},
                     {PassKind::kForward, 0, 1, 0},
                     {PassKind::kBackwardInput, 0, 1, 0},
                     {PassKind::kBackwardWeight, 0, 0, 0},
                     {PassKind::kBackwardWeight, 0, 1, 0}}};
  const Simulation result = simulate(lower(schedule), small_costs(schedule, 0));
  EXPECT_EQ(result.peak_saved, (Counts{2}));
  EXPECT_EQ(result.peak_until_input, (Counts{1}));
}

TEST(Simulate, CountsNothingSavedInForwardsAlone) {
  const Schedule schedule = forward_only(make("1f1b", 2, 3));
  const Simulation result = simulate(lower(schedule), small_costs(schedule, 0));
  EXPECT_EQ(result.peak_saved, (Counts{0, 0}));
  EXPECT_EQ(result.bubble.makespan, 8);
}

TEST(Simulate, TakesNoTimeForPassesWithoutCost) {
  const Schedule schedule = make("1f1b", 3, 3);
  CostModel cost;
  cost.num_stages = 3;
  const Simulation result = simulate(lower(schedule), cost);
  EXPECT_EQ(result.bubble.makespan, 0);
  EXPECT_EQ(result.bubble.bubble_fraction, 0.0);
  EXPECT_EQ(result.bubble.span_bubble_fraction, 0.0);
}

TEST(Simulate, RefusesACycle) {
  Schedule schedule = make("1f1b", 2, 2);
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);  // F0 B0 F1 B1
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);  // F0 F1 B0 B1
  EXPECT_THROW(simulate(lower(schedule), small_costs(schedule, 0)), InternalError);
}

TEST(Simulate, RefusesCostsThatDoNotFit) {
  const Schedule schedule = make("1f1b", 2, 2);
  const Program program = lower(schedule);
  EXPECT_THROW(simulate(program, CostModel{}), InternalError);  // one stage
  CostModel negative = small_costs(schedule, 0);
  negative.ticks[0][1] = -1;
  EXPECT_THROW(simulate(program, negative), InternalError);
  EXPECT_THROW(simulate(program, small_costs(schedule, 0), {.record_memory = true}), InternalError);
}

TEST(Simulate, RefusesTimesThatDoNotAddUp) {
  const Schedule schedule = make("1f1b", 2, 100);
  CostModel cost = small_costs(schedule, 0);
  cost.ticks[0] = {std::int64_t{1} << 60, std::int64_t{1} << 60};
  EXPECT_THROW(simulate(lower(schedule), cost), InvalidArgument);
}

}  // namespace
}  // namespace sluice
