#include "sluice/program/verify.h"

#include <gtest/gtest.h>

#include <random>

#include "sluice/common/errors.h"
#include "sluice/program/library_for_tests.h"
#include "sluice/program/lower.h"
#include "sluice/program/program_editor_for_tests.h"

namespace sluice {
namespace {

std::string all_texts(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) text += problem.text + "\n";
  return text;
}

// The wanted words must be among the problems.
void expect_problem(const Program& program, const std::string& words) {
  const std::string text = all_texts(verify(program));
  EXPECT_NE(text.find(words), std::string::npos) << "wanted: " << words << "\nfound:\n" << text;
}

void expect_problem(const ProgramEditor& editor, const std::string& words) {
  expect_problem(editor.build(), words);
}

// 1F1B, 3 ranks, 4 microbatches. Rank 1: F0 F1 B0 F2 B1 F3 B2 B3.
Program full_backward() {
  ScheduleRequest request;
  request.ranks = 3;
  request.microbatches = 4;
  return lower(make_schedule("1f1b", request));
}

// Two ranks that split the backward. Rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2; rank 1: F0 I0 W0 F1 ...
Program split_backward() {
  Schedule schedule;
  schedule.name = "split";
  schedule.placement = Placement::loop(2, 1);
  schedule.num_microbatches = 3;
  schedule.ranks.resize(2);
  for (int i = 0; i < 3; ++i) schedule.ranks[0].push_back({PassKind::kForward, 0, i, 0});
  for (int i = 0; i < 3; ++i) {
    schedule.ranks[1].push_back({PassKind::kForward, 1, i, 0});
    for (int rank = 0; rank < 2; ++rank) {
      auto& passes = schedule.ranks[static_cast<std::size_t>(rank)];
      passes.push_back({PassKind::kBackwardInput, rank, i, 0});
      passes.push_back({PassKind::kBackwardWeight, rank, i, 0});
    }
  }
  return lower(schedule);
}

Program sliced() {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 2;
  request.slices = 2;
  return lower(make_schedule("1f1b", request));
}

TEST(Verify, AcceptsEveryScheduleOfTheLibrary) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    EXPECT_EQ(all_texts(verify(lower(schedule))), "");
    EXPECT_EQ(all_texts(verify(lower(forward_only(schedule)))), "");
  });
}

TEST(Verify, AcceptsTheProgramsThatTheOtherCasesBreak) {
  EXPECT_EQ(all_texts(verify(full_backward())), "");
  EXPECT_EQ(all_texts(verify(split_backward())), "");
  EXPECT_EQ(all_texts(verify(sliced())), "");
  EXPECT_EQ(all_texts(verify(ProgramEditor(split_backward()).build())), "");
}

// --- messages ---

TEST(Verify, FindsAMissingSend) {
  ProgramEditor editor(full_backward());
  editor.drop(0, "send 0F1 to rank 1");
  expect_problem(editor, "rank 0 never sends 0F1 to rank 1");
  expect_problem(editor, "\"receive 0F1 from rank 0\" of rank 1 has no send on rank 0");
  expect_problem(editor, "rank 1 stands at 1F1, which waits for receive 0F1 from rank 0");
}

TEST(Verify, FindsAMissingReceive) {
  ProgramEditor editor(full_backward());
  editor.drop(1, "receive 2B0 from rank 2");
  expect_problem(editor, "rank 1 never receives 2B0 from rank 2");
  expect_problem(editor, "1B0 does not wait for its gradient from stage 2 on rank 2");
  expect_problem(editor, "send 2B0 to rank 1 of rank 2 is never over");
}

TEST(Verify, FindsAPassThatDoesNotWaitForItsMessage) {
  ProgramEditor editor(full_backward());
  editor.at(1, "1F2").dependencies.clear();
  expect_problem(editor, "1F2 does not wait for its activations from stage 0 on rank 0");
}

TEST(Verify, FindsASendThatDoesNotWaitForItsPass) {
  ProgramEditor editor(full_backward());
  editor.at(1, "send 1B1 to rank 0").dependencies.clear();
  expect_problem(editor, "\"send 1B1 to rank 0\" does not wait for 1B1");
  editor.at(1, "send 1B1 to rank 0").dependencies.push_back(&editor.at(1, "1B0"));
  expect_problem(editor, "\"send 1B1 to rank 0\" does not wait for 1B1");
}

TEST(Verify, FindsASendAheadOfItsPass) {
  ProgramEditor editor(full_backward());
  editor.move_before(1, "send 1F1 to rank 2", "1F1");
  expect_problem(editor, "\"send 1F1 to rank 2\" does not wait for 1F1");
}

TEST(Verify, FindsADoubledMessage) {
  ProgramEditor sends(full_backward());
  sends.repeat(0, "send 0F1 to rank 1");
  expect_problem(sends, "\"send 0F1 to rank 1\" stands twice");
  ProgramEditor receives(full_backward());
  receives.repeat(1, "receive 0F1 from rank 0");
  expect_problem(receives, "\"receive 0F1 from rank 0\" stands twice");
}

TEST(Verify, FindsEndsThatDisagreeOnThePass) {
  ProgramEditor editor(full_backward());
  std::swap(editor.at(1, "receive 0F1 from rank 0").peer,
            editor.at(1, "receive 0F2 from rank 0").peer);
  expect_problem(editor, "which is \"send 0F2 to rank 1\"");
  ProgramEditor kinds(split_backward());
  kinds.at(0, "receive 1I1 from rank 1").action.pass.kind = PassKind::kBackward;
  expect_problem(kinds, "which is \"receive 1B1 from rank 1\"");
}

TEST(Verify, FindsAMessageForTheWrongRank) {
  ProgramEditor editor(full_backward());
  editor.at(1, "send 1F1 to rank 2").action.peer = 0;
  expect_problem(editor, "\"send 1F1 to rank 0\": stage 2 is on rank 2");
  ProgramEditor outside(full_backward());
  outside.at(1, "receive 0F1 from rank 0").action.peer = 9;
  expect_problem(outside, "stage 0 is on rank 0");
  expect_problem(outside, "\"receive 0F1 from rank 9\" of rank 1 has no send on rank 9");
}

TEST(Verify, FindsAMessageThatNoStageTakes) {
  ProgramEditor editor(full_backward());
  editor.at(2, "send 2B1 to rank 1").action.pass.kind = PassKind::kForward;
  expect_problem(editor, "no stage takes the activations of stage 2");
  ProgramEditor weights(split_backward());
  weights.at(1, "send 1I1 to rank 0").action.pass.kind = PassKind::kBackwardWeight;
  expect_problem(weights, "1W1 makes nothing that travels");
}

TEST(Verify, FindsOtherOrdersOnTheTwoEndsOfAChannel) {
  ProgramEditor sends(full_backward());
  sends.swap(0, "send 0F0 to rank 1", "send 0F1 to rank 1");
  sends.lists[0].insert(sends.lists[0].begin() + 1, &sends.at(0, "0F1"));
  sends.drop(0, 3);  // 0F0 0F1 send 0F1 send 0F0
  expect_problem(sends, "rank 0 sends 0F0 after 0F1, but rank 1 receives them the other way round");
  ProgramEditor receives(full_backward());
  receives.swap(1, "receive 2B0 from rank 2", "receive 2B1 from rank 2");
  expect_problem(receives,
                 "rank 2 sends 2B1 after 2B0, but rank 1 receives them the other way round");
}

TEST(Verify, FindsAMessageThatWaitsForAMessage) {
  ProgramEditor editor(full_backward());
  editor.at(1, "send 1F2 to rank 2")
      .dependencies.push_back(&editor.at(1, "receive 0F1 from rank 0"));
  expect_problem(editor, "messages may wait for passes only");
}

TEST(Verify, FindsWrongLanes) {
  ProgramEditor editor(full_backward());
  editor.at(1, "send 1F1 to rank 2").action.lane = Lane::kSendBackward;
  editor.at(1, "receive 2B1 from rank 2").action.lane = Lane::kSendBackward;
  editor.at(1, "1F2").action.lane = Lane::kCopyIn;
  editor.at(1, "optimizer").action.lane = Lane::kVocabulary;
  expect_problem(editor, "\"send 1F1 to rank 2\" is on lane send_backward instead of send_forward");
  expect_problem(editor,
                 "\"receive 2B1 from rank 2\" is on lane send_backward instead of "
                 "receive_backward");
  expect_problem(editor, "1F2 is on lane copy_in, passes run on compute");
  expect_problem(editor, "the optimizer is on lane vocabulary");
}

// --- saved activations ---

TEST(Verify, FindsMissingPasses) {
  ProgramEditor forward(full_backward());
  forward.drop(2, "2F1");
  expect_problem(forward, "2F1 is missing");
  ProgramEditor backward(full_backward());
  backward.drop(0, "0B1");
  expect_problem(backward, "nothing frees what 0F1 saved: 0B1 (or I and W) is missing");
  ProgramEditor weight(split_backward());
  weight.drop(0, "0W1");
  expect_problem(weight, "nothing frees what 0I1 saved: 0W1 is missing");
  ProgramEditor input(split_backward());
  input.drop(0, "0I1");
  expect_problem(input, "0W1 has no 0I1 before it");
}

TEST(Verify, FindsDoubledPasses) {
  ProgramEditor forward(full_backward());
  forward.repeat(0, "0F1");
  expect_problem(forward, "0F1 runs twice");
  ProgramEditor backward(full_backward());
  backward.repeat(0, "0B1");
  expect_problem(backward, "0B1 runs after 0B1: the saved activations of 0F1 are used twice");
  ProgramEditor weight(split_backward());
  weight.repeat(1, "1W1");
  expect_problem(weight, "1W1 runs twice");
}

TEST(Verify, FindsSavedActivationsUsedByTwoKindsOfBackward) {
  ProgramEditor editor(split_backward());
  editor.repeat(0, "0I1");
  editor.at(0, "0I1").action.pass.kind = PassKind::kBackward;
  expect_problem(editor, "0I1 runs after 0B1: the saved activations of 0F1 are used twice");
  expect_problem(editor, "0W1 follows 0B1: the saved activations of 0F1 are used twice");
}

TEST(Verify, FindsPassesInTheWrongOrder) {
  ProgramEditor backward(full_backward());
  backward.move_before(1, "1B0", "1F0");
  expect_problem(backward, "1B0 comes before 1F0");
  ProgramEditor weight(split_backward());
  weight.swap(0, "0I1", "0W1");
  expect_problem(weight, "0W1 comes before 0I1");
}

TEST(Verify, FindsSlicesInTheWrongOrder) {
  ProgramEditor forwards(sliced());
  forwards.swap(0, "0F1.0", "0F1.1");
  expect_problem(forwards, "0F1.1 comes before 0F1.0: K/V of an older slice is not there yet");
  ProgramEditor backwards(sliced());
  backwards.swap(0, "0B0.1", "0B0.0");
  expect_problem(backwards,
                 "0B0.0 comes before 0B0.1: the gradient of its slice's K/V is not complete");
}

TEST(Verify, FindsAForwardThatComesAfterItsKeysAndValuesWereFreed) {
  // 0F0.1 after 0B0.0: the backward of slice 0 frees K/V that slice 1 still wants.
  ProgramEditor late(sliced());
  late.move_before(0, "0B0.0", "0F0.1");
  expect_problem(late, "0B0.0 comes before 0B0.1: the gradient of its slice's K/V is not complete");
}

TEST(Verify, FindsASliceWhoseBackwardRunsTwice) {
  ProgramEditor twice(sliced());
  twice.repeat(0, "0B0.1");
  expect_problem(twice, "the saved activations of 0F0.1 are used twice");
}

TEST(Verify, FindsNeighbourStagesOfOneRankInTheWrongOrder) {
  Schedule schedule;
  schedule.placement = Placement::v_shape(1);
  schedule.num_microbatches = 1;
  schedule.ranks = {{{PassKind::kForward, 0, 0, 0},
                     {PassKind::kForward, 1, 0, 0},
                     {PassKind::kBackward, 1, 0, 0},
                     {PassKind::kBackward, 0, 0, 0}}};
  ProgramEditor forwards(lower(schedule));
  forwards.swap(0, "0F0", "1F0");
  expect_problem(forwards, "1F0 comes before 0F0, whose result it needs");
  ProgramEditor backwards(lower(schedule));
  backwards.swap(0, "0B0", "1B0");
  expect_problem(backwards, "0B0 comes before 1B0, whose result it needs");
}

TEST(Verify, FindsPassesInTheWrongPlace) {
  ProgramEditor rank(full_backward());
  rank.lists[0].push_back(&rank.at(1, "1F3"));
  rank.drop(1, "1F3");
  expect_problem(rank, "\"1F3\" stands on rank 0, but stage 1 is on rank 1");
  ProgramEditor outside(full_backward());
  outside.at(1, "1F3").action.pass.microbatch = 4;
  expect_problem(outside, "\"1F4\" lies outside the 3 stages, 4 microbatches and 1 slices");
}

TEST(Verify, FindsAShardPassThatOnlyOneRankHas) {
  ProgramEditor editor(full_backward());
  editor.at(1, "1F3").action.pass.kind = PassKind::kEmbedForward;
  expect_problem(editor, "0E0 is missing: every rank holds a shard of the vocabulary");
}

TEST(Verify, FindsBackwardsInAProgramOfForwardsAlone) {
  Program program = full_backward();
  program.forward_only = true;
  expect_problem(program, "1B0 in a program of forwards alone");
  expect_problem(program, "an optimizer in a program of forwards alone");
}

// --- gradients ---

TEST(Verify, FindsAMissingOrDoubledOptimizer) {
  ProgramEditor missing(full_backward());
  missing.drop(1, "optimizer");
  expect_problem(missing, "rank 1 never runs the optimizer");
  ProgramEditor doubled(full_backward());
  doubled.repeat(1, "optimizer");
  expect_problem(doubled, "rank 1 runs the optimizer twice");
}

TEST(Verify, FindsAnOptimizerThatRunsTooEarly) {
  ProgramEditor full(full_backward());
  full.move_before(0, "optimizer", "0B3");
  expect_problem(full, "0B3 comes after the optimizer: its gradient is lost");
  ProgramEditor split(split_backward());
  split.move_before(0, "optimizer", "0W2");
  expect_problem(split, "0W2 comes after the optimizer: its gradient is lost");
}

// --- progress ---

TEST(Verify, ReportsWhereEachRankOfADeadlockStands) {
  Schedule schedule;
  schedule.placement = Placement::loop(2, 1);
  schedule.num_microbatches = 2;
  // Rank 0 wants the gradient of microbatch 0 before it makes what rank 1 wants first.
  schedule.ranks = {{{PassKind::kForward, 0, 0, 0},
                     {PassKind::kBackward, 0, 0, 0},
                     {PassKind::kForward, 0, 1, 0},
                     {PassKind::kBackward, 0, 1, 0}},
                    {{PassKind::kForward, 1, 0, 0},
                     {PassKind::kForward, 1, 1, 0},
                     {PassKind::kBackward, 1, 0, 0},
                     {PassKind::kBackward, 1, 1, 0}}};
  const std::vector<Problem> problems = verify(lower(schedule));
  ASSERT_EQ(problems.size(), 2U) << all_texts(problems);
  EXPECT_EQ(problems[0].rank, 0);
  EXPECT_EQ(problems[0].position, 3);
  EXPECT_EQ(problems[0].text,
            "deadlock: rank 0 stands at 0B0, which waits for receive 1B0 from rank 1; rank 1 comes "
            "to \"send 1B0 to rank 0\" only after 1F1");
  EXPECT_EQ(problems[1].rank, 1);
  EXPECT_EQ(problems[1].text,
            "deadlock: rank 1 stands at 1F1, which waits for receive 0F1 from rank 0; rank 0 comes "
            "to \"send 0F1 to rank 1\" only after 0B0");
}

// Each rank waits for its own send to be over before it posts the receive that the other's send
// needs: this ends only where sends are buffered.
TEST(Verify, RefusesAProgramThatRestsOnBufferedSends) {
  ProgramEditor editor(split_backward());
  editor.at(0, "0F2").dependencies.push_back(&editor.at(0, "send 0F1 to rank 1"));
  EXPECT_EQ(all_texts(verify(editor.build())), "");  // one side alone may wait
  editor.at(1, "1W0").dependencies.push_back(&editor.at(1, "send 1I0 to rank 0"));
  expect_problem(editor,
                 "deadlock: rank 0 stands at 0F2, which waits for send 0F1 to rank 1; rank 1 comes "
                 "to \"receive 0F1 from rank 0\" only after 1W0");
  expect_problem(editor,
                 "deadlock: rank 1 stands at 1W0, which waits for send 1I0 to rank 0; rank 0 comes "
                 "to \"receive 1I0 from rank 1\" only after 0F2");
}

TEST(Verify, AgreesWithValidateOnDeadlocks) {
  std::mt19937 random(20241);
  int num_deadlocks = 0;
  for (int round = 0; round < 300; ++round) {
    ScheduleRequest request;
    request.ranks = 2 + static_cast<int>(random() % 3);
    request.microbatches = 1 + static_cast<int>(random() % 4);
    Schedule schedule = make_schedule(round % 2 == 0 ? "1f1b" : "gis", request);
    // A few swaps of neighbours that keep each pass behind what it needs on its own rank.
    for (int swap = 0; swap < 6; ++swap) {
      Schedule other = schedule;
      auto& passes = other.ranks[random() % other.ranks.size()];
      const std::size_t k = random() % (passes.size() - 1);
      std::swap(passes[k], passes[k + 1]);
      try {
        lower(other);
        schedule = other;
      } catch (const InternalError&) {
      }
    }
    const bool stuck = !verify(lower(schedule)).empty();
    num_deadlocks += stuck ? 1 : 0;
    bool reported = false;
    for (const Problem& problem : validate(schedule)) {
      // Gradient order is a rule of schedules that a program may break without getting stuck.
      reported |= problem.text.find("deadlock") != std::string::npos;
    }
    EXPECT_EQ(stuck, reported) << describe_problems(schedule, validate(schedule));
  }
  EXPECT_GT(num_deadlocks, 20);
  EXPECT_LT(num_deadlocks, 280);
}

// --- malformed and mutated programs ---

TEST(Verify, RefusesDependenciesThatPointNowhere) {
  Program program = full_backward();
  program.ranks[1].dependencies[0] = 7;
  expect_problem(program, "depends on action 7, which is not an earlier action of its rank");
  program.ranks[1].dependencies[0] = -1;
  expect_problem(program, "depends on action -1, which is not an earlier action of its rank");
}

TEST(Verify, RefusesListsOfTheWrongLength) {
  Program ranges = full_backward();
  ranges.ranks[1].dependency_begin.pop_back();
  expect_problem(ranges, "the dependency ranges of rank 1 do not cover its");
  Program reversed = full_backward();
  reversed.ranks[1].dependency_begin[2] = 100;
  expect_problem(reversed, "is reversed");
  Program ranks = full_backward();
  ranks.ranks.pop_back();
  expect_problem(ranks, "the program has 2 action lists for 3 ranks");
  Program sizes = full_backward();
  sizes.num_microbatches = 0;
  expect_problem(sizes, "both must be at least 1");
}

TEST(Verify, FindsEveryDroppedAndEveryDoubledAction) {
  for (const Program& program : {full_backward(), split_backward(), sliced()}) {
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      for (std::size_t k = 0; k < program.ranks[rank].actions.size(); ++k) {
        ProgramEditor dropped(program);
        dropped.drop(rank, k);
        EXPECT_FALSE(verify(dropped.build()).empty()) << "dropped " << rank << " " << k;
        ProgramEditor doubled(program);
        doubled.repeat(rank, k);
        EXPECT_FALSE(verify(doubled.build()).empty()) << "doubled " << rank << " " << k;
      }
    }
  }
}

// Arbitrary damage must end in a report, whatever it says.
TEST(Verify, SurvivesRandomDamage) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    Program program = round % 2 == 0 ? split_backward() : sliced();
    for (int change = 0; change < 3; ++change) {
      RankProgram& rank = program.ranks[random() % program.ranks.size()];
      Action& action = rank.actions[random() % rank.actions.size()];
      const auto value = static_cast<std::int32_t>(random() % 12) - 2;
      switch (random() % 8) {
        case 0:
          action.peer = value;
          break;
        case 1:
          action.peer_action = value;
          break;
        case 2:
          action.pass.stage = value;
          break;
        case 3:
          action.pass.microbatch = value;
          break;
        case 4:
          action.kind = static_cast<ActionKind>(random() % 4);
          break;
        case 5:
          action.pass.kind = static_cast<PassKind>(random() % kNumPassKinds);
          break;
        case 6:
          std::swap(action, rank.actions[random() % rank.actions.size()]);
          break;
        default:
          rank.dependencies[random() % rank.dependencies.size()] = value;
      }
    }
    verify(program);
  }
}

}  // namespace
}  // namespace sluice
