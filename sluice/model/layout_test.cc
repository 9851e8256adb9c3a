#include "sluice/model/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "sluice/common/errors.h"
#include "sluice/model/accounting.h"

namespace sluice {
namespace {

ModelConfig config_of(int num_layers) {
  return {.vocab_size = 256,
          .hidden_size = 64,
          .intermediate_size = 172,
          .num_hidden_layers = num_layers,
          .num_attention_heads = 4,
          .num_key_value_heads = 2};
}

std::vector<int> one_rank_per_stage(int num_stages) {
  std::vector<int> ranks(static_cast<std::size_t>(num_stages));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> counts_of(const Layout& layout) {
  std::vector<int> counts;
  for (const StageLayers& stage : layout) counts.push_back(stage.num_layers);
  return counts;
}

std::vector<int> parse(std::string_view text, int num_layers, int num_stages) {
  return counts_of(parse_layout(text, config_of(num_layers), one_rank_per_stage(num_stages), 128));
}

std::string refusal(std::string_view text, int num_layers, int num_stages) {
  try {
    parse(text, num_layers, num_stages);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

using Counts = std::vector<int>;

TEST(Layout, MarksTheEndsAndNumbersTheLayers) {
  const Layout layout = parse_layout("2,0,3", config_of(5), one_rank_per_stage(3), 128);
  const Layout expected = {{0, 2, true, false}, {2, 0, false, false}, {2, 3, false, true}};
  EXPECT_EQ(layout, expected);
}

TEST(Layout, OfOneStageHasBothEnds) {
  const Layout expected = {{0, 4, true, true}};
  for (const char* text : {"auto", "uniform", "4", "EttttL", "Et*4L"}) {
    EXPECT_EQ(parse_layout(text, config_of(4), {0}, 128), expected) << text;
  }
}

TEST(Layout, UniformGivesTheFirstStagesOneMore) {
  EXPECT_EQ(parse("uniform", 8, 4), (Counts{2, 2, 2, 2}));
  EXPECT_EQ(parse("uniform", 7, 3), (Counts{3, 2, 2}));
  EXPECT_EQ(parse("uniform", 2, 4), (Counts{1, 1, 0, 0}));
}

TEST(Layout, ReadsMegatronStrings) {
  // The examples of Megatron's grammar, with the E and L it demands.
  EXPECT_EQ(parse("Et,(tt|)*2L", 5, 3), (Counts{3, 2, 0}));
  EXPECT_EQ(parse("E(|t)*2,L", 2, 3), (Counts{0, 1, 1}));
  EXPECT_EQ(parse("Et*3|(tt|)*29,L", 61, 31), [] {
    Counts counts(31, 2);
    counts.front() = 3;
    counts.back() = 0;
    return counts;
  }());
  EXPECT_EQ(parse("E|*3tL", 1, 4), (Counts{0, 0, 0, 1}));
  EXPECT_EQ(parse(" E tt | t L ", 3, 2), (Counts{2, 1}));
  EXPECT_EQ(parse("Et*12L", 12, 1), (Counts{12}));
}

TEST(Layout, RefusesWithTheRule) {
  const auto expect = [](std::string_view text, int layers, int stages, const char* part) {
    EXPECT_NE(refusal(text, layers, stages).find(part), std::string::npos)
        << text << ": " << refusal(text, layers, stages);
  };
  expect("Et*3|(tt|)*29,m|L", 61, 32, "m (multi-token prediction) is not implemented");
  expect("EtxL", 2, 1, "the letter x is unknown");
  expect("Ett|tL", 4, 2, "add up to 3");
  expect("Ett|tL", 3, 3, "2 stages");
  expect("tt|tL", 3, 2, "E must stand once");
  expect("tE|ttL", 3, 2, "E must stand once");
  expect("EEtt|tL", 3, 2, "E must stand once");
  expect("Ett|Lt", 3, 2, "L must stand once");
  expect("Ett|t", 3, 2, "L must stand once");
  expect("Ettt|L|", 3, 3, "L must stand once");
  expect("|EtttL", 3, 2, "E must stand once");
  expect("E(tt|tL", 3, 2, "never closed");
  expect("E((t)t)|tL", 3, 2, "do not nest");
  expect("*3tL", 3, 1, "nothing before it");
  expect("Et)tL", 2, 1, "nothing before it");
  expect("Et*L", 1, 1, "not a count");
  expect("Et*99999999999L", 1, 1, "not a count");
  expect("E(tttttttttttttttt)*999999999L", 1, 1, "more than a million");
  expect("1,2", 4, 2, "add up to 3");
  expect("1,2,1", 4, 2, "3 stages");
  expect("1,,3", 4, 3, "not a count");
  expect("1,-2", 4, 2, "not a count");
  expect("99999999999", 4, 1, "not a count");
  expect("2000000000,2000000000", 4, 2, "add up to 4000000000");
  expect("", 4, 2, "use \"auto\"");
  expect("even", 4, 2, "use \"auto\"");
}

TEST(AutoLayout, CountsTheOutputLayer) {
  // Per token the output layer costs about five of these layers: 7 against 1 + 5.1.
  const ModelConfig config = {.vocab_size = 32000,
                              .hidden_size = 512,
                              .intermediate_size = 1408,
                              .num_hidden_layers = 8,
                              .num_attention_heads = 8,
                              .num_key_value_heads = 4};
  EXPECT_EQ(counts_of(parse_layout("auto", config, {0, 1}, 512)), (Counts{7, 1}));
  EXPECT_EQ(counts_of(parse_layout("auto", config, {0, 0}, 512)).size(), 2u);
}

// The busiest rank of a layout, in FLOPs.
double busiest(const ModelConfig& config, const Layout& layout, const std::vector<int>& ranks,
               std::int64_t tokens) {
  std::vector<double> cost(ranks.size(), 0.0);
  for (std::size_t stage = 0; stage < layout.size(); ++stage) {
    cost[static_cast<std::size_t>(ranks[stage])] +=
        stage_flops(config, layout[stage], 1, tokens).total();
  }
  return *std::max_element(cost.begin(), cost.end());
}

TEST(AutoLayout, HasTheLeastBusiestRankOfAllLayouts) {
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{
           {0, 1}, {0, 1, 2}, {0, 1, 0, 1}, {0, 1, 1, 0}, {0, 1, 2, 2, 1, 0}}) {
    for (const std::int64_t vocab : {64, 1500, 6000}) {
      for (const int num_layers : {1, 5, 6}) {
        ModelConfig config = config_of(num_layers);
        config.vocab_size = vocab;
        const Layout chosen = parse_layout("auto", config, ranks, 128);
        double least = std::numeric_limits<double>::infinity();
        Counts counts(ranks.size(), 0);
        const std::function<void(std::size_t, int)> search = [&](std::size_t stage, int left) {
          if (stage + 1 == counts.size()) {
            counts[stage] = left;
            std::string text;
            for (const int count : counts)
              text += (text.empty() ? "" : ",") + std::to_string(count);
            least = std::min(least,
                             busiest(config, parse_layout(text, config, ranks, 128), ranks, 128));
            return;
          }
          for (int count = 0; count <= left; ++count) {
            counts[stage] = count;
            search(stage + 1, left - count);
          }
        };
        search(0, num_layers);
        EXPECT_LE(busiest(config, chosen, ranks, 128), least * (1 + 1e-12));
        const Counts found = counts_of(chosen);
        EXPECT_EQ(std::accumulate(found.begin(), found.end(), 0), num_layers);
      }
    }
  }
}

TEST(AutoLayout, SpreadsARanksLayersOverItsStages) {
  ModelConfig config = config_of(12);
  config.vocab_size = 4;
  const Counts counts = counts_of(parse_layout("auto", config, {0, 1, 0, 1}, 128));
  EXPECT_EQ(counts, (Counts{3, 3, 3, 3}));
}

}  // namespace
}  // namespace sluice
