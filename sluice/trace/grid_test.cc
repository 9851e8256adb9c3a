#include "sluice/trace/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "sluice/trace/timelines_for_tests.h"

namespace sluice {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

GridOptions columns(int max_columns) {
  GridOptions options;
  options.max_columns = max_columns;
  options.axis = TimeAxis{1.0, ""};
  return options;
}

TEST(Grid, DrawsPassesInProportionWithLetterAndMicrobatch) {
  EXPECT_EQ(draw_grid(unit_timeline("1f1b", 2, 3), columns(100)),
            "rank 0  F0 F1 ......B0--- F2 B1--- ...B2---\n"
            "rank 1  ...F0 B0--- F1 B1--- F2 B2--- ......\n"
            "time    0              5              10\n"
            "F forward, B backward; a cell: letter, microbatch\n");
}

TEST(Grid, PutsTheStageFirstWhenRanksHoldSeveral) {
  const auto lines = lines_of(draw_grid(unit_timeline("interleaved", 2, 2, 2), columns(100)));
  EXPECT_EQ(lines[0], "rank 0  0F0 0F1 2F0 2F1 ........2B0---- ....2B1---- 0B0---- 0B1----");
  EXPECT_EQ(lines.back(), "F forward, B backward; a cell: stage, letter, microbatch");
}

TEST(Grid, WritesTheSecondChunkInLowerCaseWhenStagesDoNotFit) {
  const auto lines = lines_of(draw_grid(unit_timeline("interleaved", 2, 2, 2), columns(55)));
  EXPECT_EQ(lines[0], "rank 0  F0 F1 f0 f1 ......b0--- ...b1--- B0--- B1---");
  EXPECT_EQ(lines.back(),
            "F forward, B backward; a cell: letter, microbatch; lower case: second chunk");
}

TEST(Grid, KeepsOnlyTheLettersBeforeItCuts) {
  const auto lines = lines_of(draw_grid(unit_timeline("1f1b", 2, 8), columns(40)));
  EXPECT_EQ(lines[0], "rank 0  FF..B-FB-FB-FB-FB-FB-FB-.B-");
}

TEST(Grid, ShowsBeginningAndEndOfWhatIsTooLong) {
  const std::string text = draw_grid(unit_timeline("1f1b", 2, 50), columns(60));
  const auto lines = lines_of(text);
  EXPECT_NE(lines[0].find("F0-F1-......B0----F2-"), std::string::npos) << text;
  EXPECT_NE(lines[0].find(" ~ "), std::string::npos) << text;
  EXPECT_NE(lines[0].find("B49---"), std::string::npos) << text;
  EXPECT_NE(lines.back().find("middle left out"), std::string::npos);
}

TEST(Grid, StaysWithinItsColumnsAndKeepsRowsEqual) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "gis"}) {
    for (const int microbatches : {1, 7, 30, 200}) {
      for (const int max_columns : {40, 80, 128, 300}) {
        const std::string text =
            draw_grid(unit_timeline(name, 4, microbatches), columns(max_columns));
        const auto lines = lines_of(text);
        ASSERT_EQ(lines.size(), 6U);
        for (std::size_t rank = 0; rank < 4; ++rank) {
          // One that ends with a pass has no gap after it.
          EXPECT_NEAR(static_cast<double>(lines[rank].size()), static_cast<double>(lines[0].size()),
                      1.0);
          EXPECT_NE(lines[rank].back(), ' ');
          EXPECT_LE(lines[rank].size(), static_cast<std::size_t>(max_columns)) << text;
        }
      }
    }
  }
}

TEST(Grid, ColoursOnlyWhenAsked) {
  GridOptions options = columns(100);
  EXPECT_EQ(draw_grid(unit_timeline("1f1b", 2, 3), options).find('\x1b'), std::string::npos);
  options.colour = true;
  const auto lines = lines_of(draw_grid(unit_timeline("1f1b", 2, 3), options));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_NE(lines[rank].find("\x1b[38;5;231;48;5;26mF0"), std::string::npos);
    // Nothing after the row is coloured.
    EXPECT_GT(lines[rank].rfind("\x1b[0m"), lines[rank].rfind("\x1b[38"));
  }
}

TEST(Grid, ShowsTheSlice) {
  Timeline timeline = unit_timeline("1f1b", 1, 1);
  timeline.num_slices = 2;
  for (Span& span : timeline.ranks[0]) span.pass.slice = 1;
  EXPECT_NE(draw_grid(timeline, columns(80)).find("F0.1 B0.1"), std::string::npos);
}

Timeline sliced(int microbatches) {
  return unit_time(
      make_schedule("slimpipe", {.ranks = 2, .microbatches = microbatches, .slices = 2}));
}

TEST(Grid, CountsWhatTheFirstRankHoldsOfSlices) {
  const auto lines = lines_of(draw_grid(sliced(2), columns(200)));
  EXPECT_EQ(lines[0],
            "rank 0  F0.0 F0.1 F1.0 F1.1 .....B0.1----- .....B0.0----- .....B1.1----- B1.0-----");
  EXPECT_EQ(lines[2], "held    1    2    3    4         4              3              2         1");
  EXPECT_NE(lines.back().find("held: slices that rank 0 keeps"), std::string::npos);
}

TEST(Grid, KeepsTheSlicesWhenThereIsNoRoomForMicrobatches) {
  const auto lines = lines_of(draw_grid(sliced(2), columns(40)));
  EXPECT_EQ(lines[0].substr(0, 20), "rank 0  F0F1F0F1..B1");
  EXPECT_NE(lines.back().find("a cell: letter, slice"), std::string::npos);
}

TEST(Grid, DrawsTheOptimizerAndPicksAUnitForRealTimes) {
  const std::string text = draw_grid(timeline_with_messages());
  EXPECT_NE(text.find("o optimizer"), std::string::npos) << text;
  EXPECT_NE(text.find(" us\n"), std::string::npos) << text;
}

TEST(Grid, PassesWithoutLengthLeaveNoMark) {
  Timeline timeline;
  timeline.num_stages = 1;
  timeline.ranks = {{pass_span(PassKind::kForward, 0, 0, 0, 4),
                     pass_span(PassKind::kBackwardInput, 0, 0, 4, 8),
                     pass_span(PassKind::kBackwardWeight, 0, 0, 8, 8)}};
  const auto lines = lines_of(draw_grid(timeline, columns(80)));
  EXPECT_EQ(lines[0], "rank 0  F0 I0");
  EXPECT_EQ(lines.back().find('W'), std::string::npos);
}

TEST(Grid, OfNothingIsEmpty) {
  EXPECT_EQ(draw_grid(Timeline()), "");
  Timeline timeline;
  timeline.ranks.resize(3);
  EXPECT_EQ(draw_grid(timeline), "");
}

TEST(Grid, OfAScheduleEqualsThatOfItsUnitTimes) {
  ScheduleRequest request;
  request.ranks = 3;
  request.microbatches = 4;
  EXPECT_EQ(draw_grid(make_schedule("1f1b", request)),
            draw_grid(unit_timeline("1f1b", 3, 4), columns(100)));
}

TEST(UnitTime, GivesTheClosedFormOf1F1B) {
  for (const int ranks : {1, 2, 5, 8}) {
    for (const int microbatches : {1, 3, 8, 17}) {
      EXPECT_EQ(unit_timeline("1f1b", ranks, microbatches).end(), 3 * (microbatches + ranks - 1));
    }
  }
}

TEST(UnitTime, StartsNothingBeforeItsInput) {
  const Timeline timeline = unit_timeline("interleaved", 3, 6, 2);
  std::vector<std::int64_t> forward_end(6 * 6, 0);
  for (const auto& spans : timeline.ranks) {
    for (const Span& span : spans) {
      if (span.kind == ActionKind::kPass && span.pass.kind == PassKind::kForward) {
        forward_end[static_cast<std::size_t>(6 * span.pass.stage + span.pass.microbatch)] =
            span.end;
      }
    }
  }
  for (const auto& spans : timeline.ranks) {
    for (const Span& span : spans) {
      if (span.kind != ActionKind::kPass || span.pass.stage == 0) continue;
      const int needs =
          span.pass.kind == PassKind::kForward ? span.pass.stage - 1 : span.pass.stage;
      EXPECT_GE(span.begin,
                forward_end[static_cast<std::size_t>(6 * needs + span.pass.microbatch)]);
    }
  }
}

}  // namespace
}  // namespace sluice
