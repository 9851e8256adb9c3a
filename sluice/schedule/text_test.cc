#include "sluice/schedule/text.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

std::string refusal(const std::string& csv) {
  try {
    from_csv(csv, "test");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ScheduleCsv, WritesARowPerRankAndACellPerPass) {
  EXPECT_EQ(to_csv(make_schedule("1f1b", {.ranks = 2, .microbatches = 2})),
            "0F0,0F1,0B0,0B1\n"
            "1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(to_csv(make_schedule("gpipe", {.ranks = 1, .microbatches = 1, .slices = 2})),
            "0F0.0,0F0.1,0B0.1,0B0.0\n");
}

TEST(ScheduleCsv, ReadsBackEverySchedule) {
  for (const ScheduleInfo& info : schedule_library()) {
    for (const int slices : {1, 3}) {
      if (slices == 1 && info.slices_itself) continue;
      const Schedule schedule =
          make_schedule(info.name, {.ranks = 3, .microbatches = 4, .slices = slices});
      const Schedule read = from_csv(to_csv(schedule), schedule.name);
      EXPECT_EQ(read.name, schedule.name);
      EXPECT_EQ(read.ranks, schedule.ranks) << info.name;
      EXPECT_EQ(read.placement, schedule.placement) << info.name;
      EXPECT_EQ(read.num_microbatches, 4);
      EXPECT_EQ(read.num_slices, slices);
      EXPECT_TRUE(validate(read).empty()) << info.name;
    }
  }
}

TEST(ScheduleCsv, ReadsOverlappedPairsAsTwoPasses) {
  const Schedule schedule = from_csv("0F0,(1F0;1B0)OVERLAP_F_B , ( 0B0 ; 0I5 )OVERLAP_F_B\n", "x");
  ASSERT_EQ(schedule.ranks.size(), 1U);
  const std::vector<Pass> expected{parse_pass("0F0"), parse_pass("1F0"), parse_pass("1B0"),
                                   parse_pass("0B0"), parse_pass("0I5")};
  EXPECT_EQ(schedule.ranks[0], expected);
}

TEST(ScheduleCsv, SkipsBlanksIdleCellsCarriageReturnsAndBlankLinesAtTheEnd) {
  const Schedule schedule = from_csv(" 0F0 ,, 0B0,\r\n ,1F0\t, 1B0,\r\n\r\n \n", "x");
  ASSERT_EQ(schedule.num_ranks(), 2);
  EXPECT_EQ(to_csv(schedule), "0F0,0B0\n1F0,1B0\n");
  EXPECT_EQ(schedule.num_microbatches, 1);
  EXPECT_TRUE(validate(schedule).empty());
}

TEST(ScheduleCsv, TakesThePlacementFromTheRows) {
  const Schedule schedule = from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "v");
  EXPECT_EQ(schedule.placement, Placement::v_shape(2));
}

TEST(ScheduleCsv, NamesRowColumnAndCellOfWhatItCannotRead) {
  const std::string what = refusal("0F0,0B0\n1F0,1Q0\n");
  EXPECT_NE(what.find("row 2, column 2: '1Q0'"), std::string::npos) << what;
  for (const char* cell : {"2F", "F0", "2F0x", "1UNSHARD3", "(0F5)", "(0F5)OVERLAP_F_B",
                           "(0F5;7B2;1F1)OVERLAP_F_B", "(0F5;)OVERLAP_F_B", ")OVERLAP_F_B",
                           "(0F5;7B2)OVERLAP", "0F0;0B0", "\"0F0\"", "0F1073741824"}) {
    EXPECT_NE(refusal(std::string("0F0,") + cell), "") << cell;
  }
}

TEST(ScheduleCsv, SendsFilesWithCommunicationBackForComputeOnly) {
  for (const char* cell :
       {"0SEND_F1", "0RECV_F1", "1SEND_B0", "0RECV_B0", "0UNSHARD", "0RESHARD", "0REDUCE_GRAD"}) {
    const std::string what = refusal(std::string("0F0,") + cell + ",0B0\n");
    EXPECT_NE(what.find("column 2"), std::string::npos) << cell << ": " << what;
    EXPECT_NE(what.find("compute_only"), std::string::npos) << cell << ": " << what;
  }
}

TEST(ScheduleCsv, RefusesFilesWithoutPassesAndGapsInTheStages) {
  EXPECT_NE(refusal(""), "");
  EXPECT_NE(refusal(" ,,\n\n"), "");
  EXPECT_NE(refusal("0F0,0B0\n2F0,2B0\n").find("stage 1"), std::string::npos);
  EXPECT_NE(refusal("0F0,900000000B0\n").find("stage 900000000"), std::string::npos);
}

TEST(ScheduleCsv, CutsLongCellsInItsMessages) {
  EXPECT_LT(refusal(std::string(100000, 'x')).size(), 400U);
}

// Damaged files must be refused or reported, never crash or eat the memory. Sanitizer builds make
// this test sharper.
TEST(ScheduleCsv, SurvivesDamagedFiles) {
  std::vector<std::string> seeds{
      "0F0,(1F0;1B0)OVERLAP_F_B,0B0\n", "0F0,0D0,0U0,0B0,0S0,0T0,0E0,0G0\n",
      to_csv(make_schedule("interleaved", {.ranks = 2, .microbatches = 3})),
      to_csv(make_schedule("gis", {.ranks = 3, .microbatches = 2, .slices = 2})),
      to_csv(make_schedule("dualpipe-v", {.ranks = 2, .microbatches = 2}))};
  constexpr std::string_view kBytes = "0123456789FBIWEGSTDU.,;()\n\r -_xOVERLAP\0\xff";
  std::mt19937 random(20250301);
  const auto below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  int num_read = 0;
  int num_broken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string csv = seeds[below(seeds.size())];
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(csv.size());
      switch (below(5)) {
        case 0:
          csv[at] = kBytes[below(kBytes.size())];
          break;
        case 1:
          csv.erase(at, 1 + below(8));
          break;
        case 2:
          csv.insert(at, 1 + below(10), kBytes[below(kBytes.size())]);
          break;
        case 3:
          csv.insert(at, csv.substr(below(csv.size()), below(20)));
          break;
        default:
          std::swap(csv[at], csv[below(csv.size())]);
          break;
      }
      if (csv.empty()) csv = "\n";
    }
    try {
      const Schedule schedule = from_csv(csv, "fuzz");
      ++num_read;
      const std::vector<Problem> problems = validate(schedule);
      if (!problems.empty()) {
        ++num_broken;
        EXPECT_FALSE(describe_problems(schedule, problems).empty());
      }
      EXPECT_EQ(from_csv(to_csv(schedule), "fuzz").ranks, schedule.ranks);
    } catch (const InvalidArgument&) {
      continue;
    }
  }
  // The damage must reach all three outcomes to mean anything.
  EXPECT_GT(num_read, 1000);
  EXPECT_GT(num_broken, 1000);
  EXPECT_LT(num_read, 19000);
}

}  // namespace
}  // namespace sluice
