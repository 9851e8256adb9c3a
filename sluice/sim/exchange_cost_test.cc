#include "sluice/sim/exchange_cost.h"

#include <gtest/gtest.h>

#include "sluice/program/lower.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/simulate.h"
#include "sluice/sim/vocab_plan.h"

namespace sluice {
namespace {

struct Case {
  Schedule schedule;
  Program program;
  CostModel cost;
};

Case slimpipe(ExchangeMode mode, ExchangeLink link = {}) {
  Case made;
  made.schedule = make_schedule("slimpipe", {.ranks = 4, .microbatches = 3, .slices = 8});
  made.program = lower(made.schedule);
  made.cost = cost_from_attention(1.0, 2.0, 0.0, made.schedule.placement, 8);
  made.cost.link = link;
  made.program.exchange = plan_exchange(made.program, mode, exchange_costs(made.cost), link);
  return made;
}

std::int64_t total_busy(const Simulation& simulation) {
  std::int64_t sum = 0;
  for (const std::int64_t busy : simulation.busy) sum += busy;
  return sum;
}

TEST(ExchangeCost, MovesWorkAndMakesNone) {
  const Case none = slimpipe(ExchangeMode::kNone);
  const std::int64_t work = total_busy(simulate(none.program, none.cost));
  for (const ExchangeMode mode : {ExchangeMode::kPairwise, ExchangeMode::kBalanced}) {
    const Case moved = slimpipe(mode);
    ASSERT_FALSE(moved.program.exchange.empty());
    EXPECT_EQ(total_busy(simulate(moved.program, moved.cost)), work);
  }
}

TEST(ExchangeCost, ShortensAndLengthensTheTwoSides) {
  const Case made = slimpipe(ExchangeMode::kBalanced);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    PassTimes times(made.program, made.cost, rank);
    std::size_t next = 0;
    const auto& exchanges = made.program.exchange.ranks[rank];
    for (const Pass& pass : made.schedule.ranks[rank]) {
      const PassTime time = times.next(pass);
      std::int64_t expected = made.cost.duration(pass);
      if (next < exchanges.size() && exchanges[next].pass == pass) {
        expected += (PassExchange::num_halves(exchanges[next].serve) -
                     PassExchange::num_halves(exchanges[next].lend)) *
                    made.cost.half_duration(pass);
        ++next;
      }
      EXPECT_EQ(time.work, expected);
      EXPECT_EQ(time.length, expected);  // the link is free
    }
    EXPECT_EQ(next, exchanges.size());
  }
}

TEST(ExchangeCost, MakesAPassAsLongAsWhatItsLinkCarries) {
  Case made = slimpipe(ExchangeMode::kBalanced);
  const Simulation free = simulate(made.program, made.cost);
  made.cost.link = {.per_half = made.cost.duration({PassKind::kForward, 0, 0, 7}),
                    .per_transfer = 0};
  const Simulation slow = simulate(made.program, made.cost);
  EXPECT_EQ(slow.busy, free.busy);
  EXPECT_GT(slow.bubble.makespan, free.bubble.makespan);
  // A plan that knows of the link leaves the exchange out.
  const Case planned = slimpipe(ExchangeMode::kBalanced, made.cost.link);
  EXPECT_TRUE(planned.program.exchange.empty());
  const Case none = slimpipe(ExchangeMode::kNone);
  EXPECT_EQ(simulate(planned.program, planned.cost).bubble.makespan,
            simulate(none.program, none.cost).bubble.makespan);
}

TEST(ExchangeCost, ShowsTheMovedWorkInTheTimeline) {
  const Case made = slimpipe(ExchangeMode::kBalanced);
  const Simulation simulation = simulate(made.program, made.cost, {.record_timeline = true});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::int64_t busy = 0;
    for (const Span& span : simulation.timeline.ranks[rank]) {
      if (span.kind == ActionKind::kPass) busy += span.end - span.begin;
    }
    EXPECT_EQ(busy, simulation.busy[rank]);
  }
}

// Collectives tie all ranks; the passes of a slot must still be able to run at the same time.
TEST(ExchangeCost, GoesWithASharedVocabulary) {
  const auto make = [](int microbatches) {
    return make_schedule("slimpipe", {.ranks = 4, .microbatches = microbatches, .slices = 8});
  };
  const CostModel cost = cost_from_attention(1.0, 2.0, 0.0, make(1).placement, 8);
  for (const VocabForm form : {VocabForm::kParallel1, VocabForm::kParallel2}) {
    Program program = lower(plan_vocabulary(make, 3, form, cost));
    const double before = simulate(program, cost).bubble.bubble_fraction;
    program.exchange = plan_exchange(program, ExchangeMode::kBalanced, exchange_costs(cost));
    EXPECT_FALSE(program.exchange.empty());
    const std::vector<Problem> problems = verify(program);
    ASSERT_TRUE(problems.empty()) << problems.front().text;
    EXPECT_LT(simulate(program, cost).bubble.bubble_fraction, before);
  }
}

}  // namespace
}  // namespace sluice
