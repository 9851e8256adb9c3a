// Every way in which copies can go wrong in a Program is found and named.
#include "sluice/program/verify_offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sluice/program/library_for_tests.h"
#include "sluice/program/lower.h"
#include "sluice/program/offload_slots.h"
#include "sluice/program/pass_grid.h"
#include "sluice/program/program_editor_for_tests.h"
#include "sluice/program/verify.h"

namespace sluice {
namespace {

Program po_full() { return lower(make_schedule("po-f", {.ranks = 2, .microbatches = 4})); }

bool told(const Program& program, const std::string& words) {
  const std::vector<Problem> problems = verify(program);
  return std::any_of(problems.begin(), problems.end(), [&](const Problem& problem) {
    return problem.text.find(words) != std::string::npos;
  });
}

void forget(ProgramEditor::Node& node, const ProgramEditor::Node& dependency) {
  std::erase(node.dependencies, &dependency);
}

TEST(VerifyOffload, PassesWhatThePlannerMakes) {
  EXPECT_TRUE(verify(po_full()).empty());
  for (const char* name : {"po-h", "po-f"}) {
    for (const int slices : {1, 3}) {
      const Program program = lower(
          make_schedule(name, {.ranks = 4, .microbatches = 9, .chunks = 3, .slices = slices}));
      EXPECT_TRUE(verify(program).empty()) << name;
    }
  }
}

TEST(VerifyOffload, FindsACopyBackThatDoesNotWaitForItsOwnCopyOut) {
  ProgramEditor editor(po_full());
  forget(editor.at(0, "0U0"), editor.at(0, "0D0"));
  EXPECT_TRUE(told(editor.build(), "0U0 does not wait for its own 0D0"));
}

TEST(VerifyOffload, FindsACopyOutThatDoesNotWaitForItsForward) {
  ProgramEditor editor(po_full());
  forget(editor.at(0, "0D0"), editor.at(0, "0F0"));
  EXPECT_TRUE(told(editor.build(), "0D0 does not wait for 0F0"));
}

TEST(VerifyOffload, FindsABackwardThatDoesNotWaitForTheCopyBack) {
  ProgramEditor editor(po_full());
  forget(editor.at(0, "0I0"), editor.at(0, "0U0"));
  EXPECT_TRUE(told(editor.build(), "0I0 does not wait for 0U0"));
}

TEST(VerifyOffload, FindsCopiesThatAreMissingDoubledOrOnTheWrongLane) {
  ProgramEditor no_out(po_full());
  no_out.drop(0, "0D0");
  EXPECT_TRUE(told(no_out.build(), "0D0 is missing"));
  ProgramEditor no_in(po_full());
  no_in.drop(0, "0U0");
  EXPECT_TRUE(told(no_in.build(), "0U0 is missing"));
  ProgramEditor twice(po_full());
  twice.repeat(0, "0D0");
  EXPECT_TRUE(told(twice.build(), "0D0 runs twice"));
  ProgramEditor lane(po_full());
  lane.at(0, "0U0").action.lane = Lane::kCopyOut;
  EXPECT_TRUE(told(lane.build(), "0U0 is on lane copy_out instead of copy_in"));
}

TEST(OffloadSlots, NeverShareAPlaceThatIsTaken) {
  const Program program =
      lower(make_schedule("po-f", {.ranks = 3, .microbatches = 9, .chunks = 3}));
  std::vector<std::int64_t> bytes;
  for (int stage = 0; stage < program.num_stages(); ++stage) bytes.push_back(100 + 37 * stage);
  const PassGrid grid{program.num_stages(), program.num_microbatches, program.num_slices};
  const std::vector<std::int64_t> away = peak_bytes_away(program, bytes);
  for (int rank = 0; rank < program.num_ranks(); ++rank) {
    const OffloadSlots slots = plan_offload_slots(program, rank, bytes, 64);
    std::vector<std::int64_t> owner(static_cast<std::size_t>(slots.capacity), -1);
    const RankProgram& list = program.ranks[static_cast<std::size_t>(rank)];
    for (const Action& action : list.actions) {
      if (action.kind != ActionKind::kPass) continue;
      const std::size_t at = grid.index(action.pass);
      if (slots.offset[at] < 0) continue;
      const auto begin = owner.begin() + slots.offset[at];
      const auto end = begin + slots.size[at];
      if (action.pass.kind == PassKind::kOffload) {
        EXPECT_EQ(slots.offset[at] % 64, 0);
        ASSERT_EQ(std::count(begin, end, -1), slots.size[at]) << "taken twice";
        std::fill(begin, end, static_cast<std::int64_t>(at));
      } else if (action.pass.kind == PassKind::kBackwardInput) {
        std::fill(begin, end, -1);
      }
    }
    EXPECT_GE(slots.capacity, away[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace
}  // namespace sluice
