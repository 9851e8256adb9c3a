#include "sluice/sim/cost_file.h"

#include <gtest/gtest.h>

#include <random>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

using Times = std::vector<double>;

constexpr std::string_view kWhole = R"({
  "unit": "us", "forward": [10572, 10591.5], "backward": [25185, 21108],
  "vocab_pass": [8376, 8387], "embed_forward": 569, "embed_backward": [710, 786],
  "p2p": 352, "vocab_barrier": 0})";
constexpr std::string_view kSplit =
    R"({"forward": 1, "backward_input": [1, 2], "backward_weight": 0.5, "p2p": [0.1, 0.2]})";

std::string refusal(std::string_view json) {
  try {
    parse_cost_file(json, 2);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refusal(std::string_view json, std::string_view words) {
  const std::string text = refusal(json);
  EXPECT_NE(text.find(words), std::string::npos) << json << "\n" << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(CostFile, KeepsEveryKey) {
  const CostFile costs = parse_cost_file(kWhole, 2);
  EXPECT_EQ(costs.unit, "us");
  EXPECT_EQ(costs.seconds_per_unit, 1e-6);
  EXPECT_EQ(costs.times.forward, (Times{10572, 10591.5}));
  EXPECT_EQ(costs.times.backward, (Times{25185, 21108}));
  EXPECT_EQ(costs.times.message, 352);
  EXPECT_TRUE(costs.times.message_of_rank.empty());
  EXPECT_EQ(costs.vocab_pass, (Times{8376, 8387}));
  EXPECT_EQ(costs.embed_forward, (Times{569, 569}));
  EXPECT_EQ(costs.embed_backward, (Times{710, 786}));
  EXPECT_EQ(costs.vocab_barrier, (Times{0, 0}));
}

TEST(CostFile, TakesTheTwoPartsOfABackward) {
  const CostFile costs = parse_cost_file(kSplit, 2);
  EXPECT_EQ(costs.unit, "");
  EXPECT_EQ(costs.seconds_per_unit, 0.0);
  EXPECT_TRUE(costs.times.backward.empty());
  EXPECT_EQ(costs.times.backward_input, (Times{1, 2}));
  EXPECT_EQ(costs.times.backward_weight, (Times{0.5, 0.5}));
  EXPECT_EQ(costs.times.message_of_rank, (Times{0.1, 0.2}));
}

TEST(CostFile, TakesTheTimesOfSlicesAndOfTheLink) {
  const CostFile costs = parse_cost_file(
      R"({"forward_slices": [1, 2, 3], "backward_slices": [2, 4, 6], "p2p": 0.5,
          "exchange_kv": 7, "exchange_q": 3})",
      2);
  ASSERT_TRUE(costs.slices.has_value());
  EXPECT_EQ(costs.slices->forward, (Times{1, 2, 3}));
  EXPECT_EQ(costs.slices->backward, (Times{2, 4, 6}));
  EXPECT_EQ(costs.times.message, 0.5);
  EXPECT_EQ(costs.exchange_kv, 7.0);
  EXPECT_EQ(costs.exchange_q, 3.0);
  EXPECT_FALSE(parse_cost_file(kWhole, 2).slices.has_value());
}

TEST(CostFile, RefusesTimesOfSlicesThatAreNotWhole) {
  expect_refusal(R"({"forward_slices": [1, 2]})", R"(either "backward_slices", or both)");
  expect_refusal(R"({"forward_slices": [1], "backward_input_slices": [1]})", "or both");
  expect_refusal(R"({"forward_slices": 3, "backward_slices": [1]})", "must be an array");
  expect_refusal(R"({"forward_slices": [1], "backward_slices": [1], "forward": 2})",
                 R"("forward" has no place beside)");
}

TEST(CostFile, RefusesBadValuesWithKeyValueAndRule) {
  expect_refusal(R"({"forward": -1, "backward": 1})",
                 R"("forward": -1 must be a number from 0 to 1000000000)");
  expect_refusal(R"({"forward": [1, null], "backward": 1})", R"("forward": null must be a number)");
  expect_refusal(R"({"forward": "3", "backward": 1})", R"("forward": "3" must be a number)");
  expect_refusal(R"({"forward": true, "backward": 1})", R"("forward": true must be a number)");
  expect_refusal(R"({"forward": 1, "backward": 1e10})", R"("backward": 10000000000.0 must be)");
  expect_refusal(R"({"forward": [1, 2, 3], "backward": 1})",
                 R"("forward" has 3 values for 2 ranks: give one number, or one for each rank)");
  expect_refusal(R"({"forward": 1, "backward": 1, "unit": "minutes"})",
                 R"("unit": "minutes" must be s, ms, us or ns)");
  expect_refusal(R"({"forward": 1, "backward": 1, "unit": 3})", R"("unit": 3 must be)");
}

TEST(CostFile, RefusesUnknownMissingAndDoubledKeys) {
  expect_refusal(R"({"forwards": 1, "backward": 1})",
                 R"("forwards" is not a key of a costs file: use unit, forward, backward,)");
  expect_refusal(R"({"backward": 1})", R"(needs "forward")");
  expect_refusal(R"({"forward": 1})", R"(needs either "backward", or both)");
  expect_refusal(R"({"forward": 1, "backward_input": 1})", R"(needs either "backward", or both)");
  expect_refusal(R"({"forward": 1, "backward": 2, "backward_input": 1, "backward_weight": 1})",
                 R"(needs either "backward", or both)");
  expect_refusal(R"({"forward": 1, "backward": 2, "forward": 3})", R"("forward" occurs twice)");
}

TEST(CostFile, RefusesTextThatIsNoObject) {
  for (const std::string_view text : {"", "[1, 2]", "3", "null", "{", "{\"forward\": 1e999}",
                                      "{\"forward\": 1} x", "\xff\xfe", "{\"forward\": NaN}"}) {
    expect_refusal(text, "must be one JSON object");
  }
}

TEST(CostFile, AsksForTheTwoPartsWhereAScheduleSplitsTheBackward) {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 2;
  const Schedule full = make_schedule("1f1b", request);
  const Schedule split = make_schedule("gis", request);
  const CostFile whole = parse_cost_file(R"({"forward": 1, "backward": 2})", 2);
  const CostFile parts = parse_cost_file(kSplit, 2);
  EXPECT_NO_THROW(check_fits(whole, full));
  EXPECT_NO_THROW(check_fits(parts, full));
  EXPECT_NO_THROW(check_fits(parts, split));
  try {
    check_fits(whole, split);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "schedule gis splits the backward: give \"backward_input\" and "
                 "\"backward_weight\" instead of \"backward\"");
  }
}

TEST(CostFile, RefusesTimesThatNoPassWouldUse) {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 2;
  const Schedule schedule = make_schedule("1f1b", request);
  EXPECT_THROW(check_fits(parse_cost_file(kWhole, 2), schedule), InvalidArgument);
  const CostFile zeros = parse_cost_file(
      R"({"forward": 1, "backward": 2, "vocab_pass": 0, "embed_forward": [0, 0]})", 2);
  EXPECT_NO_THROW(check_fits(zeros, schedule));
}

// Damaged files end in InvalidArgument or in times that are times.
TEST(CostFile, SurvivesDamagedFiles) {
  std::mt19937 random(20411);
  constexpr std::string_view kBytes = "{}[],:\"\\0123456789.eE+-truefalsnul \n\xff";
  int num_accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text(round % 2 == 0 ? kWhole : kSplit);
    const int num_changes = 1 + static_cast<int>(random() % 4);
    for (int change = 0; change < num_changes && !text.empty(); ++change) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = kBytes[random() % kBytes.size()];
          break;
        case 1:
          text.insert(at, 1, kBytes[random() % kBytes.size()]);
          break;
        case 2:
          text.erase(at, 1 + random() % 5);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
    }
    try {
      const CostFile costs = parse_cost_file(text, 2);
      ++num_accepted;
      EXPECT_EQ(costs.times.forward.size(), 2U);
      cost_from_rank_times(costs.times, Placement::loop(2, 1), 1);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    }
  }
  EXPECT_GT(num_accepted, 100);
}

TEST(CostFile, SurvivesDeepNesting) {
  const std::string deep = "{\"forward\": " + std::string(100000, '[');
  expect_refusal(deep, "must be one JSON object");
  expect_refusal("{\"forward\": " + std::string(1000, '[') + std::string(1000, ']') + "}",
                 "\"forward\" has 1 values for 2 ranks");
}

}  // namespace
}  // namespace sluice
