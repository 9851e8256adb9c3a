// What holds for every schedule of the library, whoever wrote its generator.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "sluice/common/errors.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"
#include "sluice/schedule/replay_for_tests.h"

namespace sluice {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ScheduleInfo& info : schedule_library()) all.push_back(info.name);
  return all;
}

bool takes_chunks(const ScheduleInfo& info, int chunks) {
  const std::set<std::string> any{"interleaved", "breadth-first", "gis",  "gis-h",
                                  "po",          "po-h",          "po-f", "slimpipe"};
  return any.contains(info.name) || chunks == info.default_chunks;
}

// One for schedules that are cut into slices afterwards. For those that know slices: p, a number
// that p does not divide, and (where it may be) fewer than p.
std::set<int> slice_counts(const ScheduleInfo& info, int ranks) {
  if (!info.slices_itself) return {1};
  std::set<int> counts{ranks, ranks + 1, 2 * ranks + 1};
  if (info.name != "slimpipe") counts.insert({1, 2});
  return counts;
}

ScheduleRequest with_fitting_slices(const ScheduleInfo& info, ScheduleRequest request) {
  if (info.slices_itself) request.slices = request.ranks;
  return request;
}

std::string print(const ScheduleRequest& request) {
  return std::to_string(request.ranks) + " ranks, " + std::to_string(request.microbatches) +
         " microbatches, " + std::to_string(request.chunks) + " chunks, " +
         std::to_string(request.slices) + " slices, group " + std::to_string(request.group);
}

/// Calls `check` for the sizes of the sweep: all microbatch counts up to 3p for up to 7 ranks, the
/// ones around multiples of p above.
template <typename Check>
void sweep(const ScheduleInfo& info, int max_ranks, const Check& check) {
  for (int p = 1; p <= max_ranks; ++p) {
    std::set<int> microbatches{1, 2, 3, p - 1, p, p + 1, 2 * p - 1, 2 * p, 2 * p + 3, 3 * p};
    for (int m = 1; p <= 7 && m <= 3 * p; ++m) microbatches.insert(m);
    for (const int m : microbatches) {
      if (m < 1) continue;
      for (int chunks = 1; chunks <= 4; ++chunks) {
        if (!takes_chunks(info, chunks)) continue;
        for (const int slices : slice_counts(info, p)) {
          if (slices > 1 && p > 8 && m > p) continue;  // long, and nothing new
          check(ScheduleRequest{.ranks = p, .microbatches = m, .chunks = chunks, .slices = slices});
        }
      }
    }
  }
}

class Library : public ::testing::TestWithParam<std::string> {
 protected:
  const ScheduleInfo& info() const { return find_schedule(GetParam()); }
};

TEST_P(Library, IsValidForAnyRanksMicrobatchesAndChunks) {
  sweep(info(), 16, [&](const ScheduleRequest& request) {
    const Schedule schedule = make_schedule(GetParam(), request);
    EXPECT_EQ(schedule.name, GetParam());
    EXPECT_EQ(schedule.num_ranks(), request.ranks);
    EXPECT_EQ(schedule.num_stages(), request.ranks * request.chunks);
    EXPECT_EQ(schedule.num_microbatches, request.microbatches);
    const std::vector<Problem> problems = validate(schedule);
    ASSERT_TRUE(problems.empty()) << print(request) << "\n"
                                  << describe_problems(schedule, problems);
  });
}

// Counted and replayed without validate().
TEST_P(Library, RunsEveryPassOnceInGradientOrder) {
  sweep(info(), 6, [&](const ScheduleRequest& request) {
    const Schedule schedule = make_schedule(GetParam(), request);
    std::map<std::tuple<int, int, int>, std::string> letters;  // (stage, microbatch, slice)
    std::map<std::tuple<int, char>, std::pair<int, int>> last;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (const Pass& pass : schedule.ranks[rank]) {
        ASSERT_EQ(static_cast<int>(rank), schedule.placement.rank_of(pass.stage));
        if (is_copy(pass.kind)) continue;
        letters[{pass.stage, pass.microbatch, pass.slice}] += letter(pass.kind);
        // Backwards for the input come microbatch ascending, slice descending, as well as those for
        // the weights.
        for (const char half : {'I', 'W'}) {
          if (letter(pass.kind) != half && pass.kind != PassKind::kBackward) continue;
          const std::pair<int, int> now{pass.microbatch, -pass.slice};
          const auto [before, is_first] = last.try_emplace({pass.stage, half}, std::pair{-1, 0});
          ASSERT_LT(before->second, now) << print(request);
          before->second = now;
        }
      }
    }
    ASSERT_EQ(letters.size(), static_cast<std::size_t>(schedule.num_stages() *
                                                       request.microbatches * request.slices));
    for (const auto& [unit, text] : letters) {
      ASSERT_TRUE(text == "FB" || text == "FIW") << text << " with " << print(request);
    }
    ASSERT_TRUE(testing::replay(without_offload(schedule)).has_value()) << print(request);
  });
}

TEST_P(Library, IsValidWithSlices) {
  for (const int slices : {2, 3, 5}) {
    for (int p = 1; p <= 5; ++p) {
      for (const int m : {1, 2, p, 2 * p + 1}) {
        const ScheduleRequest request{.ranks = p, .microbatches = m, .slices = slices};
        if (GetParam() == "slimpipe" && slices < p) continue;  // refused
        const Schedule schedule = make_schedule(GetParam(), request);
        EXPECT_EQ(schedule.num_slices, slices);
        const std::vector<Problem> problems = validate(schedule);
        ASSERT_TRUE(problems.empty()) << print(request) << "\n"
                                      << describe_problems(schedule, problems);
      }
    }
  }
}

TEST_P(Library, IsValidForwardOnly) {
  for (int p = 1; p <= 5; ++p) {
    for (const int m : {1, p, 2 * p + 1}) {
      const Schedule schedule = forward_only(
          make_schedule(GetParam(), with_fitting_slices(info(), {.ranks = p, .microbatches = m})));
      EXPECT_EQ(validate(schedule).size(), 0U) << p << ' ' << m;
    }
  }
}

TEST_P(Library, DescribesItself) {
  for (const std::string& text : {info().summary, info().source, info().bubble_formula,
                                  info().memory_formula, info().rules}) {
    EXPECT_FALSE(text.empty());
  }
}

TEST_P(Library, IsDeterministic) {
  const ScheduleRequest request = with_fitting_slices(info(), {.ranks = 5, .microbatches = 11});
  EXPECT_EQ(make_schedule(GetParam(), request).ranks, make_schedule(GetParam(), request).ranks);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Library, ::testing::ValuesIn(names()), [](const auto& param) {
  std::string name = param.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

class Groups : public ::testing::TestWithParam<std::string> {};

TEST_P(Groups, AreValidForAnyMicrobatches) {
  for (int p = 1; p <= 7; ++p) {
    for (int group = GetParam() == "gis" ? (p + 1) / 2 : 1;
         group <= (GetParam() == "gis" ? p : 2 * p); ++group) {
      for (int m = 1; m <= 3 * p; ++m) {
        for (int chunks = 1; chunks <= 3; ++chunks) {
          const ScheduleRequest request{
              .ranks = p, .microbatches = m, .chunks = chunks, .group = group};
          const Schedule schedule = make_schedule(GetParam(), request);
          const std::vector<Problem> problems = validate(schedule);
          ASSERT_TRUE(problems.empty()) << print(request) << "\n"
                                        << describe_problems(schedule, problems);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Groups, ::testing::Values("interleaved", "gis"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Registry, ListsTheScheduleNamesInOrder) {
  EXPECT_EQ(names(), (std::vector<std::string>{"gpipe", "1f1b", "interleaved", "breadth-first",
                                               "zb-1p", "zb-2p", "zb-v", "1f1b-v", "v-half",
                                               "v-min", "dualpipe-v", "gis", "gis-h", "po", "po-h",
                                               "po-f", "seq1f1b", "slimpipe", "slice-v"}));
}

TEST(Registry, ListsTheNamesWhenOneIsWrong) {
  try {
    find_schedule("1f1bb");
    FAIL() << "1f1bb was found";
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("'1f1bb'"), std::string::npos) << what;
    EXPECT_NE(what.find("1f1b, interleaved"), std::string::npos) << what;
  }
}

TEST(Registry, RefusesSizesThatCannotWork) {
  const auto refused = [](std::string_view name, const ScheduleRequest& request) {
    try {
      make_schedule(name, request);
      return std::string();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(refused("1f1b", {.ranks = 0}).find("ranks"), std::string::npos);
  EXPECT_NE(refused("1f1b", {.microbatches = 0}).find("microbatches"), std::string::npos);
  EXPECT_NE(refused("1f1b", {.slices = 0}).find("slices"), std::string::npos);
  EXPECT_NE(refused("interleaved", {.chunks = -1}).find("chunks"), std::string::npos);
  EXPECT_NE(refused("interleaved", {.group = -1}).find("group"), std::string::npos);
  EXPECT_NE(refused("1f1b", {.chunks = 2}).find("chunks to 1"), std::string::npos);
  EXPECT_NE(refused("gpipe", {.group = 2}).find("group"), std::string::npos);
  EXPECT_NE(refused("gpipe", {.ranks = 100000, .microbatches = 100000}).find("2^31"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
