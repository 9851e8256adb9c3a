#include "sluice/program/collectives.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/program_editor_for_tests.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/schedules_for_tests.h"

namespace sluice {
namespace {

std::string problems_of(const Program& program) {
  std::string text;
  for (const Problem& problem : verify(program)) text += problem.text + "\n";
  return text;
}

void expect_problem(const ProgramEditor& editor, const std::string& words) {
  const std::string text = problems_of(editor.build());
  EXPECT_NE(text.find(words), std::string::npos) << "wanted: " << words << "\nfound:\n" << text;
}

// Two ranks, two microbatches, one barrier: F0 S0 F1 | B0 T0 S1 ...
Schedule one_barrier() {
  Schedule schedule = testing::schedule_of({"0E0 0F0 0E1 0F1 0S0 0T0 0S1 0B0 0G0 0T1 0B1 0G1",
                                            "1E0 1F0 1E1 1S0 1F1 1T0 1S1 1B0 1G0 1T1 1B1 1G1"},
                                           2, 2);
  schedule.vocab = VocabForm::kParallel2;
  return schedule;
}

std::vector<std::string> collectives_of(const RankProgram& rank) {
  std::vector<std::string> texts;
  for (const Action& action : rank.actions) {
    if (action.kind == ActionKind::kCollective) {
      texts.push_back(std::string(to_string(action.collective)) + " " +
                      std::to_string(action.pass.microbatch));
    }
  }
  return texts;
}

TEST(Collectives, AreIssuedInOneOrderOnAllRanks) {
  const Program program = lower(one_barrier());
  EXPECT_EQ(problems_of(program), "");
  const std::vector<std::string> order = collectives_of(program.ranks[0]);
  EXPECT_EQ(order, collectives_of(program.ranks[1]));
  // Five for each microbatch, each once.
  EXPECT_EQ(order.size(), 10U);
  for (const char* one : {"reduce embedding 0", "broadcast hidden 1", "gather statistics 0",
                          "reduce hidden gradient 1", "broadcast embedding gradient 0"}) {
    EXPECT_EQ(std::count(order.begin(), order.end(), one), 1) << one;
  }
}

TEST(Collectives, OfAForwardOnlyProgramCarryNoGradients) {
  const Program program = lower(forward_only(one_barrier()));
  EXPECT_EQ(problems_of(program), "");
  EXPECT_EQ(collectives_of(program.ranks[1]).size(), 6U);
}

TEST(Collectives, CarryWhatTheirFormMakes) {
  Schedule schedule = testing::schedule_of(
      {"0F0 0F1 0S0 0T0 0S1 0T1 0B0 0B1", "1F0 1F1 1S0 1T0 1S1 1T1 1B0 1B1"}, 2, 2);
  for (const VocabForm form : {VocabForm::kParallel1, VocabForm::kParallel2}) {
    schedule.vocab = form;
    const Program program = lower(schedule);
    EXPECT_EQ(problems_of(program), "");
    for (const Action& action : program.ranks[0].actions) {
      if (action.collective != Collective::kReduceHiddenGradient) continue;
      EXPECT_EQ(action.peer, 1);
      EXPECT_EQ(letter(action.pass.kind), form == VocabForm::kParallel1 ? 'T' : 'S');
    }
  }
}

TEST(Collectives, OutOfOrderAreReportedWithRankPassAndExpectedOrder) {
  ProgramEditor editor(lower(one_barrier()));
  editor.swap(1, "gather statistics of 1S1", "broadcast hidden of 1F1");
  expect_problem(editor, "rank 1 issues \"gather statistics of 1S1\" as its collective number");
  expect_problem(editor, "where the order of all ranks has \"broadcast hidden\" of microbatch 1");
}

TEST(Collectives, ThatARankLeavesOutAreReported) {
  ProgramEditor editor(lower(one_barrier()));
  editor.drop(1, "broadcast embedding gradient of 0B1");
  expect_problem(editor, "rank 1 issues 9 collectives and ends");
}

TEST(Collectives, MustBeWaitedForByThePassesThatNeedThem) {
  ProgramEditor editor(lower(one_barrier()));
  editor.at(1, "1B0").dependencies.clear();
  expect_problem(editor, "1B0 does not wait for \"gather statistics\"");
  expect_problem(editor, "1B0 does not wait for \"reduce hidden gradient\"");
  ProgramEditor other(lower(one_barrier()));
  other.at(0, "0S1").dependencies.clear();
  expect_problem(other, "0S1 does not wait for \"broadcast hidden\"");
}

TEST(Collectives, MustDependOnThePassThatMakesWhatTheyCarry) {
  ProgramEditor editor(lower(one_barrier()));
  editor.at(0, "gather statistics of 0S0").dependencies.clear();
  expect_problem(editor, "\"gather statistics of 0S0\" of rank 0 must depend on the pass");
}

TEST(Collectives, NeedTheirPassesOnEveryRank) {
  ProgramEditor editor(lower(one_barrier()));
  editor.drop(0, "0T1");
  expect_problem(editor, "0T1 is missing: every rank holds a shard of the vocabulary");
  ProgramEditor twice(lower(one_barrier()));
  twice.repeat(1, "1T0");
  expect_problem(twice, "1T0 runs twice");
}

TEST(Collectives, ThatOneRankReachesTooLateAreADeadlock) {
  // Rank 0 asks for the gradient of microbatch 0 before it runs its own S.
  Schedule schedule = testing::schedule_of({"0F0 0B0 0S0 0T0", "1F0 1S0 1T0 1B0"}, 2, 1);
  schedule.vocab = VocabForm::kParallel2;
  EXPECT_FALSE(validate(schedule).empty());
  Program program = lower(testing::schedule_of({"0F0 0S0 0T0 0B0", "1F0 1S0 1T0 1B0"}, 2, 1));
  ProgramEditor editor(program);
  editor.move_before(0, "receive 1B0 from rank 1", "broadcast hidden of 1F0");
  editor.move_before(0, "0B0", "broadcast hidden of 1F0");
  expect_problem(editor, "deadlock: rank 0 stands at 0B0");
}

}  // namespace
}  // namespace sluice
