#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/replay_for_tests.h"
#include "sluice/schedule/text.h"

namespace sluice {
namespace {

std::string problems_of(const Schedule& schedule) {
  std::string text;
  for (const Problem& problem : validate(schedule)) {
    text += std::to_string(problem.rank) + "@" + std::to_string(problem.position) + " " +
            problem.text + "\n";
  }
  return text;
}

std::string problems_of(const char* csv) { return problems_of(from_csv(csv, "test")); }

TEST(Validate, AcceptsHandWrittenSchedules) {
  EXPECT_EQ(problems_of("0F0,0F1,0B0,0I1,0W1\n1F0,1I0,1W0,1F1,1B1\n"), "");
  EXPECT_EQ(problems_of("0F0.0,0F0.1,0B0.1,0B0.0\n"), "");
}

TEST(Validate, ReportsMissingPasses) {
  EXPECT_EQ(problems_of("0F0,0B0\n1F0,1B0,1B1\n"),
            "0@-1 0F1 is missing\n"
            "0@-1 0B1 is missing, and no I with a W stands for it\n"
            "1@-1 1F1 is missing\n");
  EXPECT_EQ(problems_of("0F0,0I0\n"), "0@-1 0W0 is missing: its I is there\n");
  EXPECT_EQ(problems_of("0F0,0W0\n"), "0@-1 0I0 is missing: its W is there\n");
  EXPECT_EQ(problems_of("0F0,0B0,0B1\n1F0,1F1,1B0,1B1\n"),
            "0@-1 0F1 is missing\n"
            "0@1 rank 0 stops at 0B0 (position 1), which needs 1B0 of rank 1 (position 2), which "
            "stops at 1F1 (position 1)\n"
            "1@1 rank 1 stops at 1F1 (position 1), which needs 0F1, and rank 0 has none\n");
}

TEST(Validate, GathersNeighboursIntoOneProblem) {
  EXPECT_EQ(problems_of("0F0,0F1,0F2,0F3,0B0\n"),
            "0@-1 each of 0B1 to 0B3 is missing, and no I with a W stands for it\n");
}

TEST(Validate, ReportsDoubledPasses) {
  EXPECT_EQ(problems_of("0F0,0F0,0B0\n"), "0@1 0F0 occurs more than once\n");
  EXPECT_EQ(problems_of("0F0,0B0,0I0,0W0\n"),
            "0@-1 0B0 is there together with an I or W of the same microbatch\n");
}

TEST(Validate, ReportsMisplacedPasses) {
  EXPECT_EQ(problems_of("0F0,1B0,0B0\n1F0\n"),
            "1@-1 rank 1 holds no stage: remove it\n"
            "1@0 1F0 is on rank 1, but stage 1 is on rank 0\n");
  Schedule outside = from_csv("0F0,0B0\n", "x");
  outside.ranks[0].push_back(parse_pass("0F7"));
  outside.ranks[0].push_back(parse_pass("5F0"));
  outside.ranks[0].push_back({.kind = PassKind::kForward, .stage = -1});
  EXPECT_EQ(problems_of(outside),
            "0@2 0F7.0 is outside the schedule, which has 1 ranks, 1 stages, 1 microbatches and 1 "
            "slices\n"
            "0@3 5F0.0 is outside the schedule, which has 1 ranks, 1 stages, 1 microbatches and 1 "
            "slices\n"
            "0@4 -1F0.0 is outside the schedule, which has 1 ranks, 1 stages, 1 microbatches and 1 "
            "slices\n");
}

TEST(Validate, ReportsWrongOrderWithinARank) {
  EXPECT_EQ(problems_of("0B0,0F0\n"), "0@0 0B0 comes before 0F0\n");
  EXPECT_EQ(problems_of("0F0,1F0,0B0,1B0\n"),
            "0@2 rank 0 stops at 0B0 (position 2), which needs 1B0, which comes later (position "
            "3)\n");
  EXPECT_NE(problems_of("0F0,0W0,0I0\n").find("0@1 0W0 comes before 0I0"), std::string::npos);
  EXPECT_NE(problems_of("0F0.1,0F0.0,0B0.1,0B0.0\n").find("0@0 0F0.1 comes before 0F0.0"),
            std::string::npos);
  EXPECT_NE(problems_of("0F0.0,0F0.1,0B0.0,0B0.1\n").find("0@2 0B0.0 comes before 0B0.1"),
            std::string::npos);
}

TEST(Validate, ReportsGradientsAddedInAnotherOrder) {
  EXPECT_EQ(problems_of("0F0,0F1,0B1,0B0\n"),
            "0@3 0B0 comes after 0B1: gradients of a stage add up microbatch ascending, slice "
            "descending\n");
  EXPECT_EQ(problems_of("0F0,0F1,0I0,0I1,0W1,0W0\n"),
            "0@5 0W0 comes after 0W1: gradients of a stage add up microbatch ascending, slice "
            "descending\n");
  EXPECT_EQ(problems_of("0F0.0,0F0.1,0I0.1,0I0.0,0W0.0,0W0.1\n"),
            "0@5 0W0.1 comes after 0W0.0: gradients of a stage add up microbatch ascending, slice "
            "descending\n");
}

TEST(Validate, ReportsOffloadsThatDoNotPairUp) {
  EXPECT_EQ(problems_of("0F0,0D0,0U0,0B0\n"), "");
  EXPECT_NE(problems_of("0F0,0D0,0B0\n").find("0U0 is missing"), std::string::npos);
  EXPECT_NE(problems_of("0F0,0U0,0B0\n").find("0D0 is missing"), std::string::npos);
  EXPECT_NE(problems_of("0F0,0U0,0D0,0B0\n").find("0U0 comes before 0D0"), std::string::npos);
  EXPECT_NE(problems_of("0F0,0D0,0B0,0U0\n").find("0B0 comes before 0U0"), std::string::npos);
  EXPECT_NE(problems_of("0D0,0F0,0U0,0B0\n").find("0D0 comes before 0F0"), std::string::npos);
}

TEST(Validate, AcceptsShardsOfTheVocabulary) {
  EXPECT_EQ(problems_of("0E0,0F0,0S0,0T0,0B0,0G0\n1E0,1F0,1S0,1B0,1T0,1G0\n"), "");
}

TEST(Validate, ReportsMissingShardsOfTheVocabulary) {
  EXPECT_EQ(problems_of("0F0,0S0,0B0,0T0\n1F0,1S0,1B0\n"),
            "1@-1 1T0 is missing: every rank holds a shard of the vocabulary\n");
  EXPECT_EQ(problems_of("0E0,0F0,0B0,0G0\n1F0,1B0,1G0\n"),
            "1@-1 1E0 is missing: every rank holds a shard of the vocabulary\n"
            "0@1 rank 0 stops at 0F0 (position 1), which needs 1E0, and rank 1 has none\n"
            "1@0 rank 1 stops at 1F0 (position 0), which needs 0F0 of rank 0 (position 1), which "
            "stops at 0F0 (position 1)\n");
}

TEST(Validate, ReportsShardsOfTheVocabularyThatComeTooLate) {
  // Rank 1 wants the gradient before rank 0 has computed its logits, and rank 0 the gradient first.
  EXPECT_EQ(problems_of("0F0,0B0,0S0,0T0\n1F0,1S0,1B0,1T0\n"),
            "0@1 deadlock: rank 0 stops at 0B0 (position 1), which needs 1B0 of rank 1 (position "
            "2), which stops at 1B0 (position 2); rank 1 stops at 1B0 (position 2), which needs "
            "0S0 of rank 0 (position 2), which stops at 0B0 (position 1)\n");
  EXPECT_NE(problems_of("0F0,0T0,0S0,0B0\n").find("0T0 comes before 0S0"), std::string::npos);
  EXPECT_NE(problems_of("0S0,0F0,0T0,0B0\n").find("rank 0 stops at 0S0"), std::string::npos);
  EXPECT_NE(problems_of("0E0,0F0,0G0,0B0\n").find("rank 0 stops at 0G0"), std::string::npos);
}

TEST(Validate, ReportsARingOfRanksAsOneDeadlock) {
  // Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1; rank 1 the reverse.
  EXPECT_EQ(problems_of("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
            "0@1 deadlock: rank 0 stops at 0B0 (position 1), which needs 1B0 of rank 1 (position "
            "2), which stops at 1F1 (position 1); rank 1 stops at 1F1 (position 1), which needs "
            "0F1 of rank 0 (position 2), which stops at 0B0 (position 1)\n");
}

TEST(Validate, SaysWhatOtherRanksWaitForBehindADeadlock) {
  const std::string text = problems_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2F1,2B0,2B1\n");
  EXPECT_NE(text.find("deadlock: rank 1 stops at 1B0"), std::string::npos) << text;
  EXPECT_NE(text.find("0@2 rank 0 stops at 0B0 (position 2), which needs 1B0 of rank 1"),
            std::string::npos)
      << text;
}

TEST(Validate, ReportsEveryProblemAtOnce) {
  const std::string text = problems_of("0F0,0F0,0B1,0F1\n1F0,1B0,1I1,1F1\n");
  EXPECT_NE(text.find("0F0 occurs more than once"), std::string::npos) << text;
  EXPECT_NE(text.find("0B0 is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("0B1 comes before 0F1"), std::string::npos) << text;
  EXPECT_NE(text.find("1W1 is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("1I1 comes before 1F1"), std::string::npos) << text;
}

TEST(Validate, ReportsSizesThatCannotBe) {
  Schedule empty;
  EXPECT_EQ(validate(empty).size(), 1U);
  Schedule ranks = from_csv("0F0,0B0\n", "x");
  ranks.ranks.emplace_back();
  EXPECT_NE(problems_of(ranks).find("1 ranks but there are passes for 2"), std::string::npos);
  EXPECT_NE(problems_of("0F0,0B0,0F900000000\n").find("far too large"), std::string::npos);
}

TEST(Validate, ReportsBackwardsInAForwardOnlySchedule) {
  Schedule schedule = from_csv("0F0,0B0\n", "x");
  schedule.forward_only = true;
  EXPECT_EQ(problems_of(schedule), "0@1 0B0 has no place in a forward-only schedule\n");
}

TEST(Validate, LimitsTheNumberOfProblems) {
  Schedule schedule = make_schedule("gpipe", {.ranks = 1, .microbatches = 3000});
  std::reverse(schedule.ranks[0].begin(), schedule.ranks[0].end());
  const std::vector<Problem> problems = validate(schedule);
  EXPECT_EQ(problems.size(), 1001U);
  EXPECT_NE(problems.back().text.find("more problems"), std::string::npos);
}

// A random change of a good schedule is reported exactly when the independent replay, the count of
// passes or the order of gradients finds fault.
TEST(Validate, AgreesWithReplayOnSwappedPasses) {
  std::mt19937 random(7);
  int num_good = 0;
  int num_bad = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto names = std::to_array<const char*>({"1f1b", "interleaved", "gis", "dualpipe-v"});
    Schedule schedule =
        make_schedule(names[random() % names.size()], {.ranks = 3, .microbatches = 4});
    std::vector<Pass>& passes = schedule.ranks[random() % 3];
    const std::size_t at = random() % (passes.size() - 1);
    std::swap(passes[at], passes[std::min(passes.size() - 1, at + 1 + random() % 3)]);
    bool ascending = true;
    std::vector<int> last(static_cast<std::size_t>(schedule.num_stages()), -1);
    for (const Pass& pass : passes) {
      if (pass.kind != PassKind::kBackward && pass.kind != PassKind::kBackwardWeight) continue;
      int& before = last[static_cast<std::size_t>(pass.stage)];
      ascending = ascending && pass.microbatch > before;
      before = pass.microbatch;
    }
    const bool good = ascending && testing::replay(schedule).has_value();
    EXPECT_EQ(validate(schedule).empty(), good)
        << to_csv(schedule) << describe_problems(schedule, validate(schedule));
    ++(good ? num_good : num_bad);
  }
  EXPECT_GT(num_good, 300);
  EXPECT_GT(num_bad, 300);
}

TEST(DescribeProblems, MarksWhatCanNeverRun) {
  const Schedule schedule = from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "test");
  const std::string text = describe_problems(schedule, validate(schedule));
  EXPECT_NE(text.find("\nrank 0   0F0  0B0! 0F1! 0B1!\n"
                      "rank 1   1F0  1F1! 1B0! 1B1!\n"),
            std::string::npos)
      << text;
}

TEST(DescribeProblems, MarksCellsThatAProblemNames) {
  const Schedule schedule = from_csv("0F0,0F1,0B1,0B0\n", "test");
  const std::string text = describe_problems(schedule, validate(schedule));
  EXPECT_NE(text.find("\nrank 0   0F0  0F1  0B1  0B0?\n"), std::string::npos) << text;
}

TEST(DescribeProblems, ShowsThePartAroundTheFirstWrongCellOfALongSchedule) {
  Schedule schedule = make_schedule("1f1b", {.ranks = 2, .microbatches = 500});
  std::swap(schedule.ranks[1][600], schedule.ranks[1][601]);
  const std::string text = describe_problems(schedule, validate(schedule));
  EXPECT_NE(text.find("1B300!"), std::string::npos) << text;
  EXPECT_NE(text.find("Positions 594 to 617 of 1000"), std::string::npos) << text;
  EXPECT_LT(text.size(), 2000U);
}

}  // namespace
}  // namespace sluice
