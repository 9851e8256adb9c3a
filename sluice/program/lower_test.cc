#include "sluice/program/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "sluice/common/errors.h"
#include "sluice/program/library_for_tests.h"
#include "sluice/schedule/offload.h"

namespace sluice {
namespace {

using Texts = std::vector<std::string>;

Schedule make_1f1b(int ranks, int microbatches, int slices = 1) {
  ScheduleRequest request;
  request.ranks = ranks;
  request.microbatches = microbatches;
  request.slices = slices;
  return make_schedule("1f1b", request);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Texts texts(const Program& program, std::size_t rank) {
  Texts list;
  for (const Action& action : program.ranks[rank].actions) {
    list.push_back(to_string(action, program.num_slices > 1));
  }
  return list;
}

// The texts of what the first action that prints as `text` depends on.
Texts dependencies(const Program& program, std::size_t rank, const std::string& text) {
  const Texts list = texts(program, rank);
  const auto at = std::find(list.begin(), list.end(), text);
  Texts found;
  if (at == list.end()) return {"no " + text};
  const auto k = static_cast<std::size_t>(at - list.begin());
  for (const std::int32_t d : program.ranks[rank].dependencies_of(k)) {
    found.push_back(list[static_cast<std::size_t>(d)]);
  }
  return found;
}

TEST(Lowering, WritesOutOneForwardOneBackward) {
  const Program program = lower(make_1f1b(2, 2));
  EXPECT_EQ(texts(program, 0), (Texts{"0F0", "send 0F0 to rank 1", "0F1", "send 0F1 to rank 1",
                                      "receive 1B0 from rank 1", "0B0", "receive 1B1 from rank 1",
                                      "0B1", "optimizer"}));
  EXPECT_EQ(texts(program, 1),
            (Texts{"receive 0F0 from rank 0", "1F0", "1B0", "send 1B0 to rank 0",
                   "receive 0F1 from rank 0", "1F1", "1B1", "send 1B1 to rank 0", "optimizer"}));
}

TEST(Lowering, GivesAPassItsForwardAndItsInput) {
  const Program program = lower(make_1f1b(3, 2));
  EXPECT_EQ(dependencies(program, 0, "0F0"), (Texts{}));
  EXPECT_EQ(dependencies(program, 1, "1F1"), (Texts{"receive 0F1 from rank 0"}));
  EXPECT_EQ(dependencies(program, 1, "1B1"), (Texts{"1F1", "receive 2B1 from rank 2"}));
  EXPECT_EQ(dependencies(program, 2, "2B1"), (Texts{"2F1"}));
  EXPECT_EQ(dependencies(program, 1, "send 1F0 to rank 2"), (Texts{"1F0"}));
}

TEST(Lowering, GivesASliceItsNeighbours) {
  const Program program = lower(make_1f1b(2, 1, 3));
  EXPECT_EQ(dependencies(program, 1, "1F0.2"), (Texts{"receive 0F0.2 from rank 0", "1F0.1"}));
  EXPECT_EQ(dependencies(program, 1, "1B0.2"), (Texts{"1F0.2"}));
  EXPECT_EQ(dependencies(program, 1, "1B0.1"), (Texts{"1F0.1", "1B0.2"}));
  EXPECT_EQ(dependencies(program, 0, "0B0.0"),
            (Texts{"0F0.0", "receive 1B0.0 from rank 1", "0B0.1"}));
}

TEST(Lowering, GivesAWeightPassItsInputPassAndTheOptimizerTheLastOfEveryStage) {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 2;
  const Program program = lower(make_schedule("gis", request));
  EXPECT_EQ(dependencies(program, 1, "3W1"), (Texts{"3I1"}));
  EXPECT_EQ(dependencies(program, 1, "optimizer"), (Texts{"1W1", "3W1"}));
}

TEST(Lowering, SendsNothingBetweenStagesOfOneRank) {
  Schedule schedule = make_1f1b(1, 1);
  schedule.placement = Placement::v_shape(1);
  schedule.ranks = {{{PassKind::kForward, 0, 0, 0},
                     {PassKind::kForward, 1, 0, 0},
                     {PassKind::kBackward, 1, 0, 0},
                     {PassKind::kBackward, 0, 0, 0}}};
  const Program program = lower(schedule);
  EXPECT_EQ(texts(program, 0), (Texts{"0F0", "1F0", "1B0", "0B0", "optimizer"}));
  EXPECT_EQ(dependencies(program, 0, "1F0"), (Texts{"0F0"}));
  EXPECT_EQ(dependencies(program, 0, "0B0"), (Texts{"0F0", "1B0"}));
  EXPECT_EQ(program.num_messages(), 0);
}

// Rank 1 takes the messages of the channel in another order than rank 0 sends them.
TEST(Lowering, ReceivesEarlyWhatALaterMessageOvertakes) {
  Schedule schedule = make_1f1b(2, 2);
  schedule.ranks[0] = {{PassKind::kForward, 0, 0, 0},
                       {PassKind::kForward, 0, 1, 0},
                       {PassKind::kBackward, 0, 0, 0},
                       {PassKind::kBackward, 0, 1, 0}};
  schedule.ranks[1] = {{PassKind::kForward, 1, 1, 0},
                       {PassKind::kForward, 1, 0, 0},
                       {PassKind::kBackward, 1, 0, 0},
                       {PassKind::kBackward, 1, 1, 0}};
  const Program program = lower(schedule);
  EXPECT_EQ(texts(program, 1),
            (Texts{"receive 0F0 from rank 0", "receive 0F1 from rank 0", "1F1", "1F0", "1B0",
                   "send 1B0 to rank 0", "1B1", "send 1B1 to rank 0", "optimizer"}));
}

TEST(Lowering, KeepsTheOrderOfThePasses) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const Program program = lower(schedule);
    const Schedule bare = without_offload(schedule);
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      std::vector<Pass> passes;
      for (const Action& action : program.ranks[rank].actions) {
        const bool is_compute = action.lane == Lane::kCompute;
        if (action.kind == ActionKind::kPass && is_compute) passes.push_back(action.pass);
      }
      EXPECT_EQ(passes, bare.ranks[rank]);
    }
  });
}

TEST(Lowering, PairsEverySendWithOneReceive) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const Program program = lower(schedule);
    std::int64_t num_receives = 0;
    for (int rank = 0; rank < program.num_ranks(); ++rank) {
      const auto& actions = program.ranks[static_cast<std::size_t>(rank)].actions;
      for (std::size_t k = 0; k < actions.size(); ++k) {
        if (actions[k].kind != ActionKind::kSend && actions[k].kind != ActionKind::kReceive)
          continue;
        const Action& answer = program.ranks[static_cast<std::size_t>(actions[k].peer)]
                                   .actions[static_cast<std::size_t>(actions[k].peer_action)];
        EXPECT_EQ(answer.pass, actions[k].pass);
        EXPECT_EQ(answer.peer, rank);
        EXPECT_EQ(static_cast<std::size_t>(answer.peer_action), k);
        EXPECT_NE(answer.kind, actions[k].kind);
        num_receives += actions[k].kind == ActionKind::kReceive ? 1 : 0;
      }
    }
    EXPECT_EQ(num_receives, program.num_messages());
  });
}

TEST(Lowering, SendsOneMessagePerBoundaryBetweenRanksAndPass) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    int num_boundaries = 0;
    for (int stage = 0; stage + 1 < schedule.num_stages(); ++stage) {
      num_boundaries +=
          schedule.placement.rank_of(stage) != schedule.placement.rank_of(stage + 1) ? 1 : 0;
    }
    EXPECT_EQ(lower(schedule).num_messages(),
              2 * num_boundaries * schedule.num_microbatches * schedule.num_slices);
  });
}

TEST(Lowering, KeepsTheSendersOrderOnBothEndsOfAChannel) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const Program program = lower(schedule);
    using Channel = std::tuple<int, int, bool>;
    std::map<Channel, std::vector<Pass>> sent;
    std::map<Channel, std::vector<Pass>> received;
    for (int rank = 0; rank < program.num_ranks(); ++rank) {
      for (const Action& action : program.ranks[static_cast<std::size_t>(rank)].actions) {
        const bool forward = action.pass.kind == PassKind::kForward;
        if (action.kind == ActionKind::kSend) {
          sent[{rank, action.peer, forward}].push_back(action.pass);
        } else if (action.kind == ActionKind::kReceive) {
          received[{action.peer, rank, forward}].push_back(action.pass);
        }
      }
    }
    EXPECT_EQ(sent, received);
  });
}

// Each receive is followed, before any other receive of its channel, by a pass that needs it or a
// later message of the channel: none is placed earlier than that asks for.
TEST(Lowering, PostsAReceiveOnlyWhenItOrALaterOneIsNeeded) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const Program program = lower(schedule);
    for (const RankProgram& rank : program.ranks) {
      bool after_receive = false;
      for (std::size_t k = 0; k < rank.actions.size(); ++k) {
        if (rank.actions[k].kind == ActionKind::kReceive) {
          after_receive = true;
        } else if (after_receive) {
          const auto needs = rank.dependencies_of(k);
          EXPECT_NE(std::find(needs.begin(), needs.end(), static_cast<std::int32_t>(k - 1)),
                    needs.end())
              << to_string(rank.actions[k]);
          after_receive = false;
        }
      }
      EXPECT_FALSE(after_receive);
    }
  });
}

TEST(Lowering, LowersForwardsAloneWithoutBackwardAndOptimizer) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    SCOPED_TRACE(label);
    const Program program = lower(forward_only(schedule));
    EXPECT_TRUE(program.forward_only);
    std::int64_t num_forwards = 0;
    for (const RankProgram& rank : program.ranks) {
      for (const Action& action : rank.actions) {
        EXPECT_NE(action.kind, ActionKind::kOptimizer);
        EXPECT_EQ(action.pass.kind, PassKind::kForward);
        num_forwards += action.kind == ActionKind::kPass ? 1 : 0;
      }
    }
    EXPECT_EQ(num_forwards,
              schedule.num_stages() * schedule.num_microbatches * schedule.num_slices);
  });
}

std::string refusal(const Schedule& schedule) {
  try {
    lower(schedule);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "lowered";
}

TEST(Lowering, RefusesAReloadOfWhatWasNotOffloaded) {
  Schedule schedule = make_1f1b(2, 2);
  schedule.ranks[0].push_back({PassKind::kReload, 0, 0, 0});
  EXPECT_PRED2(contains, refusal(schedule), "0U0");
}

TEST(Lowering, RefusesWhatValidateWouldReport) {
  const Schedule good = make_1f1b(2, 2);  // rank 1: F0 B0 F1 B1
  EXPECT_EQ(refusal(good), "lowered");
  const auto with = [&](auto change) {
    Schedule schedule = good;
    change(schedule.ranks);
    return refusal(schedule);
  };
  EXPECT_PRED2(contains, with([](auto& ranks) { ranks[1].pop_back(); }),
               "nobody produces the input");
  EXPECT_PRED2(contains, with([](auto& ranks) { ranks[0].pop_back(); }), "lacks 0F1");
  EXPECT_PRED2(contains, with([](auto& ranks) { ranks[1].push_back(ranks[1][0]); }),
               "1F0 is scheduled twice");
  EXPECT_PRED2(contains, with([](auto& ranks) { ranks[1].push_back(ranks[1][1]); }),
               "1B0 is scheduled twice");
  EXPECT_PRED2(contains, with([](auto& ranks) { std::swap(ranks[1][0], ranks[1][1]); }),
               "1B0 is scheduled before its forward");
  EXPECT_PRED2(contains, with([](auto& ranks) { std::swap(ranks[0], ranks[1]); }), "on rank 0");
  EXPECT_PRED2(contains, with([](auto& ranks) { ranks[1][0].microbatch = 7; }), "outside");
  EXPECT_PRED2(contains, with([](auto& ranks) {
                 ranks[1].push_back({PassKind::kBackwardWeight, 1, 0, 0});
               }),
               "1W0 follows a full backward");
  EXPECT_PRED2(contains, with([](auto& ranks) { ranks[1][3].kind = PassKind::kBackwardInput; }),
               "lacks 1F1");
}

TEST(Actions, PrintAsWhatTheyDo) {
  const Pass pass{PassKind::kForward, 2, 5, 1};
  EXPECT_EQ(to_string(Action{.pass = pass}), "2F5");
  EXPECT_EQ(to_string(Action{.pass = pass}, true), "2F5.1");
  EXPECT_EQ(to_string(Action{.kind = ActionKind::kSend, .peer = 3, .pass = pass}),
            "send 2F5 to rank 3");
  EXPECT_EQ(to_string(Action{.kind = ActionKind::kReceive, .peer = 1, .pass = pass}),
            "receive 2F5 from rank 1");
  EXPECT_EQ(to_string(Action{.kind = ActionKind::kOptimizer, .pass = {}}), "optimizer");
}

TEST(Lanes, HaveDistinctNames) {
  std::vector<std::string_view> names;
  for (int lane = 0; lane < kNumLanes; ++lane) names.push_back(to_string(static_cast<Lane>(lane)));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace sluice
