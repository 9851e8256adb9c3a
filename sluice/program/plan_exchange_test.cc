#include "sluice/program/plan_exchange.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "sluice/program/level_slot.h"
#include "sluice/program/lock_step.h"
#include "sluice/program/lower.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

struct Size {
  int ranks, slices, chunks, microbatches;

  std::string text() const {
    return fmt::format("{} ranks, {} slices, {} chunks, {} microbatches", ranks, slices, chunks,
                       microbatches);
  }
};

Program slimpipe(const Size& size) {
  return lower(make_schedule("slimpipe", {.ranks = size.ranks,
                                          .microbatches = size.microbatches,
                                          .chunks = size.chunks,
                                          .slices = size.slices}));
}

ExchangePlan plan(const Program& program, ExchangeMode mode) {
  return plan_exchange(program, mode, causal_costs(program.num_stages(), program.num_slices));
}

const std::vector<Size> kSizes = {{4, 8, 1, 4}, {8, 16, 1, 3},  {4, 8, 2, 1}, {3, 6, 2, 4},
                                  {5, 7, 1, 3}, {8, 16, 5, 2},  {2, 2, 1, 1}, {4, 6, 2, 3},
                                  {7, 9, 3, 2}, {6, 12, 1, 12}, {1, 4, 2, 2}};

TEST(LockStep, IsThePublishedSlotOfSlimPipe) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.text());
    const Program program = slimpipe(size);
    const auto slots = lock_step_slots(program);
    const int all = size.slices * size.chunks;
    for (int rank = 0; rank < size.ranks; ++rank) {
      int forwards = 0;
      int backwards = 0;
      const auto& actions = program.ranks[static_cast<std::size_t>(rank)].actions;
      for (std::size_t k = 0; k < actions.size(); ++k) {
        if (actions[k].kind != ActionKind::kPass) continue;
        const int slot = slots[static_cast<std::size_t>(rank)][k];
        if (actions[k].pass.kind == PassKind::kForward) {
          ASSERT_EQ(slot, 2 * (forwards++ + rank));
        } else {
          ASSERT_EQ(slot, 2 * (all + 2 * (size.ranks - 1) - rank - 1 + backwards++) + 1);
        }
      }
    }
  }
}

// By rank and number of the forward: who, and whole slices; below 0 lends, above 0 serves.
using PairMap = std::map<std::pair<int, int>, std::pair<int, int>>;

PairMap pair_map(const ExchangePlan& plan, const Size& size) {
  PairMap map;
  for (int rank = 0; rank < size.ranks; ++rank) {
    for (const PassExchange& exchange : plan.ranks[static_cast<std::size_t>(rank)]) {
      const Pass& pass = exchange.pass;
      if (pass.kind != PassKind::kForward) continue;
      const int number = pass.microbatch * size.slices + pass.slice;  // one chunk
      for (const ExchangeEntry& entry : exchange.lend) {
        map[{rank, number}] = {entry.peer, -entry.num_halves() / 2};
      }
      for (const ExchangeEntry& entry : exchange.serve) {
        map[{rank, number}] = {entry.peer, entry.num_halves() / 2};
      }
    }
  }
  return map;
}

TEST(PlanExchange, PairsAsPublished) {
  const Size size{4, 8, 1, 2};
  // 4 ranks, 8 slices, 2 microbatches: those of the published assignment that move something.
  const PairMap golden = {
      {{0, 3}, {3, -1}},  {{0, 4}, {3, -1}},  {{0, 5}, {3, -1}},  {{0, 6}, {3, -1}},
      {{0, 7}, {3, -1}},  {{0, 8}, {1, 3}},   {{0, 9}, {3, 2}},   {{0, 11}, {3, -1}},
      {{0, 12}, {3, -1}}, {{0, 13}, {3, -1}}, {{0, 14}, {3, -1}}, {{0, 15}, {3, -1}},
      {{1, 7}, {0, -3}},  {{1, 8}, {2, 3}},   {{2, 7}, {1, -3}},  {{2, 8}, {3, 3}},
      {{3, 0}, {0, 1}},   {{3, 1}, {0, 1}},   {{3, 2}, {0, 1}},   {{3, 3}, {0, 1}},
      {{3, 4}, {0, 1}},   {{3, 6}, {0, -2}},  {{3, 7}, {2, -3}},  {{3, 8}, {0, 1}},
      {{3, 9}, {0, 1}},   {{3, 10}, {0, 1}},  {{3, 11}, {0, 1}},  {{3, 12}, {0, 1}}};
  EXPECT_EQ(pair_map(plan(slimpipe(size), ExchangeMode::kPairwise), size), golden);
}

TEST(PlanExchange, PairsOnlyWhereAllRanksAreBusy) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.text());
    const Program program = slimpipe(size);
    const int all = size.slices * size.chunks * size.microbatches;
    for (const auto& passes : plan(program, ExchangeMode::kPairwise).ranks) {
      for (const PassExchange& exchange : passes) {
        if (exchange.pass.kind != PassKind::kForward) continue;
        EXPECT_GE(exchange.slot / 2, size.ranks - 1);
        EXPECT_LT(exchange.slot / 2, all);
        EXPECT_EQ(exchange.lend.size() + exchange.serve.size(), 1U);
      }
    }
  }
}

// Half slices of work of every busy rank, by slot, after the plan.
std::map<int, std::vector<int>> work_by_slot(const Program& program, const ExchangePlan& plan) {
  const auto slots = lock_step_slots(program);
  std::map<int, std::vector<int>> work;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::size_t next = 0;
    const auto& actions = program.ranks[rank].actions;
    for (std::size_t k = 0; k < actions.size(); ++k) {
      const Pass& pass = actions[k].pass;
      if (actions[k].kind != ActionKind::kPass) continue;
      std::int64_t halves = 2 * pass.slice + 1;
      if (!plan.ranks.empty() && next < plan.ranks[rank].size() &&
          plan.ranks[rank][next].pass == pass) {
        EXPECT_EQ(plan.ranks[rank][next].slot, slots[rank][k]);
        halves -= PassExchange::num_halves(plan.ranks[rank][next].lend);
        halves += PassExchange::num_halves(plan.ranks[rank][next].serve);
        ++next;
      }
      work[slots[rank][k]].push_back(static_cast<int>(halves));
    }
    EXPECT_TRUE(plan.ranks.empty() || next == plan.ranks[rank].size()) << "rank " << rank;
  }
  return work;
}

TEST(PlanExchange, LevelsEverySlotToAHalfSlice) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.text());
    const Program program = slimpipe(size);
    const auto slots = work_by_slot(program, plan(program, ExchangeMode::kBalanced));
    const int allowed = size.slices % size.ranks == 0 ? 0 : 1;
    for (const auto& [slot, work] : slots) {
      const auto [low, high] = std::minmax_element(work.begin(), work.end());
      EXPECT_LE(*high - *low, allowed) << "slot " << slot;
    }
  }
}

TEST(PlanExchange, KeepsTheDiagonalAndLendsTheOldestOnce) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.text());
    const Program program = slimpipe(size);
    for (const auto& passes : plan(program, ExchangeMode::kBalanced).ranks) {
      for (const PassExchange& exchange : passes) {
        std::int32_t next = 0;
        for (const ExchangeEntry& entry : exchange.lend) {
          EXPECT_EQ(entry.begin, next);
          next = entry.end;
        }
        EXPECT_LE(next, 2 * exchange.pass.slice);
        EXPECT_TRUE(exchange.lend.empty() || exchange.serve.empty());
      }
    }
  }
}

// What of a task's work leaves in its forward leaves in its backward too, unless one of the two
// runs in warm-up or drain, where fewer ranks are busy.
TEST(PlanExchange, MovesTheSameForwardAndBackwardOutsideTheRamps) {
  for (const Size& size : {Size{4, 8, 1, 4}, Size{8, 16, 2, 3}, Size{3, 6, 1, 4}}) {
    SCOPED_TRACE(size.text());
    for (const ExchangeMode mode : {ExchangeMode::kPairwise, ExchangeMode::kBalanced}) {
      const Program program = slimpipe(size);
      // By task. At a junction the peer's task of a backward is of the next microbatch where that
      // of the forward was of the one before: what counts is its stage and slice, and the range.
      using Entries = std::set<std::array<int, 4>>;
      std::map<std::array<int, 3>, std::array<Entries, 2>> lent;
      for (const auto& passes : plan(program, mode).ranks) {
        for (const PassExchange& exchange : passes) {
          const Pass& pass = exchange.pass;
          Entries& entries = lent[{pass.stage, pass.microbatch, pass.slice}]
                                 [pass.kind == PassKind::kForward ? 0 : 1];
          for (const ExchangeEntry& entry : exchange.lend) {
            entries.insert({entry.peer_pass.stage, entry.peer_pass.slice, entry.begin, entry.end});
          }
        }
      }
      int compared = 0;
      for (const auto& [task, both] : lent) {
        if (task[1] == 0 || task[1] + 1 == size.microbatches) continue;
        EXPECT_EQ(both[0], both[1]) << task[0] << "F" << task[1] << "." << task[2];
        ++compared;
      }
      EXPECT_GT(compared, 0);
    }
  }
}

// K/V slices, and transfers, of a microbatch in the steady state, per layer and rank.
TEST(PlanExchange, MovesTheVolumeThatWasCounted) {
  struct Row {
    Size size;
    double pairwise_kv, pairwise_q, balanced_kv, balanced_q;
    int largest_pairwise, largest_balanced;  // half slices
  };
  const std::vector<Row> rows = {{{4, 8, 1, 7}, 4.0, 2.25, 6.25, 4.5, 6, 7},
                                 {{8, 16, 1, 7}, 20.0, 6.125, 25.25, 9.75, 14, 15},
                                 {{8, 32, 1, 7}, 48.0, 12.125, 61.75, 18.25, 30, 31},
                                 {{8, 64, 1, 7}, 104.0, 24.125, 135.75, 34.25, 62, 63},
                                 {{8, 16, 5, 7}, 13.6, 6.025, 17.85, 8.35, 14, 15},
                                 {{8, 32, 5, 7}, 28.8, 12.025, 37.95, 16.45, 30, 31},
                                 {{16, 64, 5, 5}, 131.2, 28.0125, 151.95, 33.1, 62, 63}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.size.text());
    const Program program = slimpipe(row.size);
    const auto count = [&](const ExchangePlan& plan) {
      double halves = 0.0;
      double transfers = 0.0;
      for (const auto& passes : plan.ranks) {
        for (const PassExchange& exchange : passes) {
          if (exchange.pass.kind != PassKind::kForward) continue;
          if (exchange.pass.microbatch != row.size.microbatches / 2) continue;
          halves += static_cast<double>(PassExchange::num_halves(exchange.lend));
          transfers += static_cast<double>(exchange.lend.size());
        }
      }
      const double layers = row.size.ranks * row.size.chunks;
      return std::pair(halves / 2.0 / layers, transfers / layers);
    };
    const ExchangePlan pairwise = plan(program, ExchangeMode::kPairwise);
    const ExchangePlan balanced = plan(program, ExchangeMode::kBalanced);
    EXPECT_DOUBLE_EQ(count(pairwise).first, row.pairwise_kv);
    EXPECT_DOUBLE_EQ(count(pairwise).second, row.pairwise_q);
    EXPECT_DOUBLE_EQ(count(balanced).first, row.balanced_kv);
    EXPECT_DOUBLE_EQ(count(balanced).second, row.balanced_q);
    EXPECT_EQ(pairwise.largest_entry(), row.largest_pairwise);
    EXPECT_EQ(balanced.largest_entry(), row.largest_balanced);
    if (row.size.ranks < 8) continue;
    EXPECT_LE(balanced.num_forward_kv_slices(), 1.4 * pairwise.num_forward_kv_slices());
  }
}

TEST(PlanExchange, PlansNothingWithoutSlicesOrWithoutAMode) {
  const Program sliced = slimpipe({4, 8, 1, 4});
  EXPECT_EQ(plan(sliced, ExchangeMode::kNone), ExchangePlan{});
  const Program whole = lower(make_schedule("1f1b", {.ranks = 4, .microbatches = 8}));
  EXPECT_EQ(plan(whole, ExchangeMode::kBalanced), ExchangePlan{});
  EXPECT_TRUE(plan(sliced, ExchangeMode::kBalanced).most_served(0) > 0);
}

// Halves that level a slot: loads of ranks after the transfers.
std::vector<std::int64_t> after(const std::vector<SlotLoad>& loads,
                                const std::vector<SlotTransfer>& transfers) {
  std::vector<std::int64_t> work;
  for (const SlotLoad& load : loads) work.push_back(load.total());
  for (const SlotTransfer& transfer : transfers) {
    const std::int64_t ticks =
        (transfer.end - transfer.begin) * loads[static_cast<std::size_t>(transfer.lender)].half;
    work[static_cast<std::size_t>(transfer.lender)] -= ticks;
    work[static_cast<std::size_t>(transfer.server)] += ticks;
  }
  return work;
}

std::int64_t longest(const std::vector<std::int64_t>& work) {
  return *std::max_element(work.begin(), work.end());
}

TEST(LevelSlot, LevelsWhatRanksHaveBesideTheirAttention) {
  // A rank with a heavy stage lends although its context is the shorter one.
  const std::vector<SlotLoad> loads = {{100, 10, 2}, {20, 10, 4}};
  const std::vector<SlotTransfer> transfers = level_slot(loads, {});
  ASSERT_EQ(transfers.size(), 1U);
  EXPECT_EQ(transfers[0], (SlotTransfer{0, 1, 0, 2}));
  EXPECT_EQ(after(loads, transfers), (std::vector<std::int64_t>{120, 120}));
}

TEST(LevelSlot, ComesWithinAHalfSliceOfAnyLoads) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<SlotLoad> loads(static_cast<std::size_t>(draw(2, 9)));
    const int half = draw(1, 50);
    for (SlotLoad& load : loads) load = {draw(0, 3 * half), half, draw(0, 12)};
    const std::vector<std::int64_t> work = after(loads, level_slot(loads, {}));
    const auto top = std::max_element(work.begin(), work.end());
    const auto low = std::min_element(work.begin(), work.end());
    const auto at = static_cast<std::size_t>(top - work.begin());
    const bool lends_all = *top <= loads[at].own;  // nothing is left that could move
    EXPECT_TRUE(*top - *low <= half || lends_all) << *top << " " << *low << " half " << half;
  }
}

TEST(LevelSlot, LeavesOutWhatCostsMoreThanItGains) {
  const std::vector<SlotLoad> loads = {{10, 10, 3}, {10, 10, 2}, {10, 10, 1}, {10, 10, 0}};
  const std::int64_t before = longest(after(loads, {}));
  EXPECT_EQ(longest(after(loads, level_slot(loads, {}))), 40);
  // A link so slow that one half slice takes as long as the whole slot.
  EXPECT_TRUE(level_slot(loads, {.per_half = before, .per_transfer = 0}).empty());
  EXPECT_TRUE(level_slot(loads, {.per_half = 0, .per_transfer = before}).empty());
  // One that carries a part in time: the slot is shorter, but not level.
  const std::vector<SlotTransfer> part = level_slot(loads, {.per_half = 25, .per_transfer = 0});
  EXPECT_FALSE(part.empty());
  EXPECT_LT(longest(after(loads, part)), before);
  EXPECT_GT(longest(after(loads, part)), 40);
  // One that is fast enough changes nothing.
  EXPECT_EQ(level_slot(loads, {.per_half = 1, .per_transfer = 1}), level_slot(loads, {}));
}

}  // namespace
}  // namespace sluice
