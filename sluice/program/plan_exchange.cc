#include "sluice/program/plan_exchange.h"

#include <algorithm>
#include <map>

#include "sluice/common/errors.h"
#include "sluice/program/level_slot.h"
#include "sluice/program/lock_step.h"

namespace sluice {
namespace {

struct Member {
  std::int32_t slot = 0;
  std::int32_t rank = 0;
  Pass pass;
};

bool attends(const Action& action) {
  return action.kind == ActionKind::kPass && runs_layers(action.pass.kind);
}

// All passes with attention, by slot, then by rank.
std::vector<Member> passes_by_slot(const Program& program) {
  const std::vector<std::vector<std::int32_t>> slots = lock_step_slots(program);
  std::vector<Member> members;
  for (std::size_t rank = 0; rank < slots.size(); ++rank) {
    const std::vector<Action>& actions = program.ranks[rank].actions;
    for (std::size_t k = 0; k < actions.size(); ++k) {
      if (!attends(actions[k])) continue;
      SLUICE_CHECK(slots[rank][k] >= 0, "{} can never run", to_string(actions[k], true));
      members.push_back({slots[rank][k], static_cast<std::int32_t>(rank), actions[k].pass});
    }
  }
  std::stable_sort(members.begin(), members.end(),
                   [](const Member& a, const Member& b) { return a.slot < b.slot; });
  return members;
}

class Planner {
 public:
  Planner(const Program& program, ExchangeMode mode, const ExchangeCosts& costs,
          const ExchangeLink& link)
      : program_(program), costs_(costs), link_(link) {
    plan_.mode = mode;
    plan_.ranks.resize(program.ranks.size());
  }

  ExchangePlan run() {
    const std::vector<Member> members = passes_by_slot(program_);
    for (std::size_t begin = 0; begin < members.size();) {
      std::size_t end = begin;
      while (end < members.size() && members[end].slot == members[begin].slot) ++end;
      plan_slot(members.data() + begin, members.data() + end);
      begin = end;
    }
    return std::move(plan_);
  }

 private:
  SlotLoad load_of(const Pass& pass) const {
    const std::size_t at =
        static_cast<std::size_t>(pass.stage) * static_cast<std::size_t>(costs_.num_slices) +
        static_cast<std::size_t>(pass.slice);
    return {costs_.own[at], costs_.half[at], pass.slice};
  }

  void plan_slot(const Member* begin, const Member* end) {
    std::vector<SlotLoad> loads;
    for (const Member* member = begin; member != end; ++member) {
      loads.push_back(load_of(member->pass));
    }
    const std::vector<SlotTransfer>& transfers = transfers_for(loads);
    if (transfers.empty()) return;
    std::vector<PassExchange> exchanges;
    for (const Member* member = begin; member != end; ++member) {
      exchanges.push_back({member->pass, member->slot, {}, {}});
    }
    for (const SlotTransfer& transfer : transfers) {
      const auto lender = static_cast<std::size_t>(transfer.lender);
      const auto server = static_cast<std::size_t>(transfer.server);
      exchanges[lender].lend.push_back(
          {begin[server].rank, begin[server].pass, transfer.begin, transfer.end});
      exchanges[server].serve.push_back(
          {begin[lender].rank, begin[lender].pass, transfer.begin, transfer.end});
    }
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
      PassExchange& exchange = exchanges[i];
      if (exchange.lend.empty() && exchange.serve.empty()) continue;
      std::sort(exchange.serve.begin(), exchange.serve.end(),
                [](const ExchangeEntry& a, const ExchangeEntry& b) { return a.peer < b.peer; });
      plan_.ranks[static_cast<std::size_t>(begin[i].rank)].push_back(std::move(exchange));
    }
  }

  // A step repeats few different slots many times.
  const std::vector<SlotTransfer>& transfers_for(const std::vector<SlotLoad>& loads) {
    const auto [found, is_new] = known_.try_emplace(loads);
    if (!is_new) return found->second;
    if (plan_.mode == ExchangeMode::kBalanced) {
      found->second = level_slot(loads, link_);
    } else if (loads.size() == program_.ranks.size()) {
      found->second = pair_slot(loads);
    }
    return found->second;
  }

  const Program& program_;
  const ExchangeCosts& costs_;
  const ExchangeLink& link_;
  ExchangePlan plan_;
  std::map<std::vector<SlotLoad>, std::vector<SlotTransfer>> known_;
};

}  // namespace

ExchangeCosts causal_costs(int num_stages, int num_slices) {
  const std::size_t size =
      static_cast<std::size_t>(num_stages) * static_cast<std::size_t>(num_slices);
  return {num_slices, std::vector<std::int64_t>(size, 1), std::vector<std::int64_t>(size, 1)};
}

ExchangePlan plan_exchange(const Program& program, ExchangeMode mode, const ExchangeCosts& costs,
                           const ExchangeLink& link) {
  const std::size_t size =
      static_cast<std::size_t>(program.num_stages()) * static_cast<std::size_t>(program.num_slices);
  SLUICE_CHECK(costs.num_slices == program.num_slices && costs.own.size() == size &&
                   costs.half.size() == size,
               "exchange costs for {} slices, {} and {} entries; the program has {} and {}",
               costs.num_slices, costs.own.size(), costs.half.size(), program.num_slices, size);
  if (mode == ExchangeMode::kNone || program.num_slices == 1) return {};
  ExchangePlan plan = Planner(program, mode, costs, link).run();
  if (plan.empty()) plan.ranks.clear();
  return plan;
}

}  // namespace sluice
