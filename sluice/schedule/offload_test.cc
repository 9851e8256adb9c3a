// The plan of offload copies: golden order, peaks against the published planner, and what must hold
// for any schedule. Times are in half units; a pass of one stage takes one unit.
#include "sluice/schedule/offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "sluice/common/errors.h"
#include "sluice/schedule/squeeze.h"

namespace sluice {
namespace {

constexpr std::int64_t kUnit = 200;

PassTicks unit_ticks(int num_stages) {
  PassTicks ticks;
  ticks.forward.assign(static_cast<std::size_t>(num_stages), kUnit);
  ticks.backward_input = ticks.forward;
  ticks.backward_weight = ticks.forward;
  return ticks;
}

PassTimetable squeezed(const Schedule& schedule, const PassTicks& ticks) {
  const SqueezedTimes times = squeeze(schedule, ticks);
  PassTimetable table(schedule.ranks.size());
  for (std::size_t rank = 0; rank < table.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Pass& pass = schedule.ranks[rank][i];
      const std::int64_t begin = times.start[rank][i];
      table[rank].push_back({begin, begin + ticks_of(ticks, pass.kind, pass.stage)});
    }
  }
  return table;
}

/// A copy takes half of `k` times F + I + W.
OffloadPlan plan(const Schedule& schedule, double k, int num_chunks, bool one_direction = true) {
  const PassTicks ticks = unit_ticks(schedule.num_stages());
  OffloadCosts costs;
  costs.out.assign(ticks.forward.size(), std::llround(k * 1.5 * static_cast<double>(kUnit)));
  costs.in = costs.out;
  costs.one_direction = one_direction;
  return plan_offload(schedule, squeezed(schedule, ticks), costs, {num_chunks, 100});
}

OffloadPlan plan(const char* name, int ranks, int chunks, double k, int num_chunks) {
  return plan(make_schedule(name, {.ranks = ranks, .microbatches = 4 * ranks, .chunks = chunks}), k,
              num_chunks);
}

std::int64_t worst_peak(const OffloadPlan& plan) {
  std::int64_t worst = 0;
  for (const RankOffload& rank : plan.ranks) worst = std::max(worst, rank.peak);
  return worst;
}

std::string in_chunks(const Schedule& schedule, std::size_t rank) {
  std::string text;
  for (const Pass& pass : schedule.ranks[rank]) {
    if (!text.empty()) text += ' ';
    text += letter(pass.kind) + std::to_string(pass.microbatch) + '.' +
            std::to_string(schedule.placement.chunk_of(pass.stage));
  }
  return text;
}

/// Counted anew from the list of every rank: what is on the device when each pass has taken what it
/// takes.
std::vector<std::int64_t> counted_peaks(const Schedule& schedule) {
  std::vector<std::int64_t> peaks;
  for (const auto& passes : schedule.ranks) {
    std::int64_t held = 0;
    std::int64_t peak = 0;
    for (const Pass& pass : passes) {
      if (pass.kind == PassKind::kForward || pass.kind == PassKind::kReload) ++held;
      peak = std::max(peak, held);
      if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight ||
          pass.kind == PassKind::kOffload) {
        --held;
      }
    }
    EXPECT_EQ(held, 0);
    peaks.push_back(peak);
  }
  return peaks;
}

TEST(Offload, FollowsTheGoldenTraceOfOneChunkAtRatioOne) {
  const Schedule schedule = make_schedule("po", {.ranks = 4, .microbatches = 8});
  const OffloadPlan one = plan(schedule, 1.0, 1);
  EXPECT_EQ(in_chunks(one.schedule, 0),
            "F0.0 D0.0 F1.0 F0.1 D1.0 F2.0 F1.1 D2.0 F3.0 I0.1 W0.1 D3.0 F2.1 F4.0 I1.1 D4.0 U0.0 "
            "W1.1 F3.1 I0.0 W0.0 F5.0 I2.1 D5.0 U1.0 W2.1 F4.1 I1.0 W1.0 F6.0 I3.1 D6.0 U2.0 W3.1 "
            "F5.1 I2.0 W2.0 F7.0 I4.1 D7.0 U3.0 W4.1 F6.1 I3.0 W3.0 I5.1 U4.0 W5.1 F7.1 I4.0 W4.0 "
            "I6.1 U5.0 W6.1 I5.0 W5.0 U6.0 I7.1 W7.1 U7.0 I6.0 W6.0 I7.0 W7.0");
  // The published planner, which also allocates a pass ahead, keeps 4, 4, 3, 3.
  const std::array<std::int64_t, 4> before{7, 6, 5, 4};
  const std::array<std::int64_t, 4> after{3, 3, 2, 2};
  const OffloadPlan two = plan(schedule, 1.0, 2);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(one.ranks[rank].peak_before, before[rank]);
    EXPECT_EQ(one.ranks[rank].peak, after[rank]);
    EXPECT_LE(two.ranks[rank].peak, after[rank]);
  }
}

/// Largest peak over the ranks with the first n = 0.. chunks copied out by the published planner;
/// -1 where it found no plan.
struct Published {
  const char* schedule;
  int ranks, chunks;
  double k;
  std::vector<int> peaks;
};

TEST(Offload, KeepsNoMoreThanThePublishedPlannerAndPlansWhereItFailed) {
  for (const Published& known :
       std::vector<Published>{{"gis-h", 8, 5, 1.0, {24, 20, 16, 12, -1, -1}},
                              {"po", 8, 5, 1.0, {24, 17, 12, 8, 5, 6}},
                              {"gis-h", 16, 3, 0.66, {32, 20, 12, 4}},
                              {"po", 16, 3, 0.66, {32, 18, 8, 4}},
                              {"gis-h", 32, 2, 0.84, {48, 21, -1}},
                              {"po", 32, 2, 0.84, {49, 18, 7}},
                              {"gis-h", 8, 4, 1.0, {20, 16, 12, 8, -1}},
                              {"po", 8, 4, 1.0, {23, 15, 9, 5, -1}}}) {
    std::int64_t last = known.peaks.front();
    for (int n = 0; n < static_cast<int>(known.peaks.size()); ++n) {
      const std::int64_t peak =
          worst_peak(plan(known.schedule, known.ranks, known.chunks, known.k, n));
      const int bound = known.peaks[static_cast<std::size_t>(n)];
      if (bound >= 0) {
        EXPECT_LE(peak, bound) << known.schedule << ' ' << known.ranks << ' ' << n;
      }
      EXPECT_LE(peak, last) << "more chunks, more memory: " << known.schedule << ' ' << n;
      last = peak;
    }
  }
}

TEST(Offload, PlansAboveRatioOneAndForOddRanks) {
  for (const double k : {1.0, 1.1, 1.2, 1.3, 1.4}) {
    for (const int ranks : {3, 5, 7, 8}) {
      for (const int chunks : {2, 3, 4}) {
        const OffloadPlan none = plan("po", ranks, chunks, k, 0);
        const OffloadPlan full = plan("po", ranks, chunks, k, chunks);
        EXPECT_LT(worst_peak(full), worst_peak(none)) << k << ' ' << ranks << ' ' << chunks;
        EXPECT_TRUE(validate(full.schedule).empty());
      }
    }
  }
}

TEST(Offload, FullKeepsThreeAtHalfAndFiveAtFourFifthsWhateverTheSize) {
  for (const int ranks : {4, 5, 8, 16}) {
    for (const int chunks : {2, 3, 8, 16}) {
      EXPECT_LE(worst_peak(plan("po", ranks, chunks, 0.5, chunks)), 3) << ranks << ' ' << chunks;
      EXPECT_LE(worst_peak(plan("po", ranks, chunks, 0.8, chunks)), 5) << ranks << ' ' << chunks;
    }
  }
}

TEST(Offload, KeepsNoMoreInAStepOfVeryManyMicrobatches) {
  for (const char* name : {"po", "gis-h", "1f1b", "zb-v"}) {
    for (const double k : {0.6, 0.9, 1.3}) {
      const auto peak = [&](int microbatches) {
        return worst_peak(
            plan(make_schedule(name, {.ranks = 4, .microbatches = microbatches}), k, 1 << 20));
      };
      EXPECT_LE(peak(1200), peak(100)) << name << ' ' << k;
    }
  }
}

TEST(Offload, LeavesTheTriangleOfTheShortLivedChunks) {
  for (const auto& [ranks, chunks] : {std::pair{8, 4}, {8, 8}, {16, 3}, {4, 6}}) {
    const double whole = static_cast<double>(plan("po", ranks, chunks, 0.0, 0).ranks[0].peak);
    for (int n = 1; n <= chunks; ++n) {
      const double share = static_cast<double>((chunks - n) * (chunks - n + 1)) /
                           static_cast<double>(chunks * (chunks + 1));
      const double peak = static_cast<double>(plan("po", ranks, chunks, 0.0, n).ranks[0].peak);
      EXPECT_LE(peak, std::ceil(share * whole) + 1.0) << ranks << ' ' << chunks << ' ' << n;
    }
  }
}

TEST(Offload, GivesValidSchedulesWithThePeaksItStates) {
  for (const ScheduleInfo& info : schedule_library()) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int microbatches : {1, 3, 9}) {
        const Schedule bare = without_offload(
            make_schedule(info.name, {.ranks = ranks,
                                      .microbatches = microbatches,
                                      .slices = info.slices_itself ? 2 * ranks : 1}));
        for (const bool one_direction : {true, false}) {
          const OffloadPlan result = plan(bare, 0.7, 1 << 20, one_direction);
          ASSERT_TRUE(validate(result.schedule).empty()) << info.name << ' ' << ranks;
          EXPECT_EQ(without_offload(result.schedule).ranks, bare.ranks);
          const std::vector<std::int64_t> peaks = counted_peaks(result.schedule);
          for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
            EXPECT_EQ(result.ranks[rank].peak, peaks[rank]) << info.name;
            EXPECT_LE(result.ranks[rank].peak, result.ranks[rank].peak_before);
          }
        }
      }
    }
  }
}

TEST(Offload, CopiesNothingThatDoesNotLowerThePeak) {
  // With one microbatch everything is needed back at once; a link far too slow carries nothing.
  for (const RankOffload& rank :
       plan(make_schedule("1f1b", {.ranks = 1, .microbatches = 8}), 0.5, 1).ranks) {
    EXPECT_EQ(rank.num_moved, 0);
  }
  for (const RankOffload& rank : plan("po", 4, 2, 1000.0, 2).ranks) EXPECT_EQ(rank.num_moved, 0);
}

TEST(Offload, PlansTheSameAtEveryTimeScale) {
  const Schedule schedule = make_schedule("po", {.ranks = 4, .microbatches = 12, .chunks = 3});
  std::vector<std::vector<Pass>> first;
  for (const std::int64_t scale : {1, 1000, 999983}) {
    PassTicks ticks = unit_ticks(schedule.num_stages());
    OffloadCosts costs;
    for (auto* row : {&ticks.forward, &ticks.backward_input, &ticks.backward_weight}) {
      for (std::int64_t& value : *row) value = 2 * scale;
    }
    costs.out.assign(ticks.forward.size(), 3 * scale);
    costs.in = costs.out;
    const OffloadPlan result = plan_offload(schedule, squeezed(schedule, ticks), costs, {3, 100});
    if (first.empty()) first = result.schedule.ranks;
    EXPECT_EQ(result.schedule.ranks, first) << scale;
  }
}

TEST(Offload, ReadsAmountsAndRefusesOthersByName) {
  const Placement placement = Placement::loop(2, 3);
  EXPECT_EQ(parse_offload("--offload", "none", placement).num_chunks, 0);
  EXPECT_EQ(parse_offload("--offload", "half", placement).num_chunks, 2);
  EXPECT_EQ(parse_offload("--offload", "full", placement).num_chunks, 3);
  EXPECT_EQ(parse_offload("--offload", "1", placement).num_chunks, 1);
  EXPECT_EQ(parse_offload("--offload", "half", Placement::loop(2, 1)).num_units_percent, 50);
  for (const char* text : {"some", "4", "-1", "1x"}) {
    EXPECT_THROW(parse_offload("--offload", text, placement), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace sluice
