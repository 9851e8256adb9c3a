#include "sluice/program/level_slot.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace sluice {
namespace {

using Moves = std::vector<std::int64_t>;  // half slices by member: above 0 lends, below 0 serves

std::int64_t mean_of(const std::vector<SlotLoad>& loads) {
  std::int64_t sum = 0;
  for (const SlotLoad& load : loads) sum += load.total();
  return sum / static_cast<std::int64_t>(loads.size());
}

std::int64_t longest(const std::vector<SlotLoad>& loads) {
  std::int64_t most = 0;
  for (const SlotLoad& load : loads) most = std::max(most, load.total());
  return most;
}

std::int64_t unit_of(const std::vector<SlotLoad>& loads) {
  std::int64_t unit = std::numeric_limits<std::int64_t>::max();
  for (const SlotLoad& load : loads) unit = std::min(unit, load.half);
  return unit;
}

// Moves most of what levelling moves at once: all that lies a whole unit or more off the mean, as
// far as both sides have as much of it.
Moves move_in_bulk(const std::vector<SlotLoad>& loads, std::int64_t unit, std::int64_t level) {
  Moves moves(loads.size(), 0);
  std::int64_t lent = 0;
  std::int64_t room = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const std::int64_t off = loads[i].total() - level;
    moves[i] = std::min<std::int64_t>(off / unit, 2 * loads[i].slice);  // towards zero
    (moves[i] > 0 ? lent : room) += std::abs(moves[i]);
  }
  const int surplus_side = lent > room ? 1 : -1;
  std::int64_t excess = std::abs(lent - room);
  for (std::int64_t& move : moves) {
    if (move * surplus_side <= 0) continue;
    const std::int64_t cut = std::min(excess, std::abs(move));
    move -= surplus_side * cut;
    excess -= cut;
  }
  return moves;
}

// One half slice from the longest to the shortest until they are within one of each other.
void level_rest(const std::vector<SlotLoad>& loads, std::int64_t unit, Moves& moves) {
  std::set<std::pair<std::int64_t, std::size_t>> order;  // load, and among equals the lower last
  const auto key = [&](std::size_t i) {
    return std::pair(loads[i].total() - unit * moves[i], loads.size() - i);
  };
  for (std::size_t i = 0; i < loads.size(); ++i) order.insert(key(i));
  while (order.size() > 1) {
    const auto top = std::prev(order.end());
    const std::size_t lender = loads.size() - top->second;
    const std::size_t server = loads.size() - order.begin()->second;
    if (top->first - order.begin()->first <= unit) return;
    if (moves[lender] >= 2 * loads[lender].slice) {  // only its diagonal is left
      order.erase(top);
      continue;
    }
    order.erase(top);
    order.erase(order.begin());
    ++moves[lender];
    --moves[server];
    order.insert(key(lender));
    order.insert(key(server));
  }
}

std::vector<std::size_t> by_size(const Moves& moves, int sign) {
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (moves[i] * sign > 0) members.push_back(i);
  }
  std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(moves[a]) > std::abs(moves[b]);
  });
  return members;
}

// The largest lender to the largest server, and so on; each lends its oldest half slices first.
std::vector<SlotTransfer> match(const Moves& moves) {
  std::vector<SlotTransfer> transfers;
  const std::vector<std::size_t> servers = by_size(moves, -1);
  std::size_t next = 0;
  std::int64_t room = servers.empty() ? 0 : -moves[servers[0]];
  for (const std::size_t lender : by_size(moves, 1)) {
    std::int64_t lent = 0;
    while (lent < moves[lender] && next < servers.size()) {
      const std::int64_t count = std::min(moves[lender] - lent, room);
      transfers.push_back(
          {static_cast<std::int32_t>(lender), static_cast<std::int32_t>(servers[next]),
           static_cast<std::int32_t>(lent), static_cast<std::int32_t>(lent + count)});
      lent += count;
      room -= count;
      if (room == 0 && ++next < servers.size()) room = -moves[servers[next]];
    }
  }
  return transfers;
}

// How long the slot takes: each rank's work, beside it what passes over its link.
std::int64_t slot_length(const std::vector<SlotLoad>& loads,
                         const std::vector<SlotTransfer>& transfers, std::int64_t unit,
                         const ExchangeLink& link) {
  std::vector<std::int64_t> work;
  std::vector<std::int64_t> carried(loads.size(), 0);
  for (const SlotLoad& load : loads) work.push_back(load.total());
  for (const SlotTransfer& transfer : transfers) {
    const std::int64_t count = transfer.end - transfer.begin;
    for (const std::int32_t side : {transfer.lender, transfer.server}) {
      carried[static_cast<std::size_t>(side)] += count * link.per_half + link.per_transfer;
    }
    work[static_cast<std::size_t>(transfer.lender)] -= count * unit;
    work[static_cast<std::size_t>(transfer.server)] += count * unit;
  }
  std::int64_t length = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    length = std::max({length, work[i], carried[i]});
  }
  return length;
}

// Takes from everybody only what lies above `level`, for whoever has most room.
Moves cut_to_level(const std::vector<SlotLoad>& loads, std::int64_t unit, std::int64_t level) {
  Moves moves(loads.size(), 0);
  std::int64_t lent = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const std::int64_t above = loads[i].total() - level;
    if (above <= 0) continue;
    moves[i] = std::min<std::int64_t>((above + unit - 1) / unit, 2 * loads[i].slice);
    lent += moves[i];
  }
  std::vector<std::size_t> servers(loads.size());
  std::iota(servers.begin(), servers.end(), std::size_t{0});
  std::stable_sort(servers.begin(), servers.end(), [&](std::size_t a, std::size_t b) {
    return loads[a].total() < loads[b].total();
  });
  for (const std::size_t server : servers) {
    const std::int64_t room = std::max<std::int64_t>(0, (level - loads[server].total()) / unit);
    const std::int64_t taken = moves[server] > 0 ? 0 : std::min(room, lent);
    moves[server] -= taken;
    lent -= taken;
  }
  for (std::int64_t& move : moves) {  // what found no room stays
    const std::int64_t back = move > 0 ? std::min(move, lent) : 0;
    move -= back;
    lent -= back;
  }
  return moves;
}

}  // namespace

std::vector<SlotTransfer> pair_slot(const std::vector<SlotLoad>& loads) {
  std::vector<std::size_t> order(loads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return loads[a].slice < loads[b].slice; });
  std::vector<SlotTransfer> transfers;
  for (std::size_t i = 0; i < order.size() / 2; ++i) {
    const std::size_t server = order[i];
    const std::size_t lender = order[order.size() - 1 - i];
    const std::int32_t slices = (loads[lender].slice - loads[server].slice) / 2;
    if (slices == 0) continue;
    transfers.push_back(
        {static_cast<std::int32_t>(lender), static_cast<std::int32_t>(server), 0, 2 * slices});
  }
  return transfers;
}

std::vector<SlotTransfer> level_slot(const std::vector<SlotLoad>& loads, const ExchangeLink& link) {
  const std::int64_t unit = unit_of(loads);
  if (loads.size() < 2 || unit <= 0) return {};
  const std::int64_t before = longest(loads);
  const std::int64_t mean = mean_of(loads);
  Moves moves = move_in_bulk(loads, unit, mean);
  level_rest(loads, unit, moves);
  std::vector<SlotTransfer> best = match(moves);
  if (link.per_half == 0 && link.per_transfer == 0) return best;

  // A link that cannot carry all of it in time may still carry a part.
  std::int64_t best_length = slot_length(loads, best, unit, link);
  for (std::int64_t low = mean, high = before; high - low > unit;) {
    const std::int64_t level = low + (high - low) / 2;
    std::vector<SlotTransfer> part = match(cut_to_level(loads, unit, level));
    const std::int64_t length = slot_length(loads, part, unit, link);
    if (length < best_length) {
      best_length = length;
      best = std::move(part);
    }
    (length > level + unit ? low : high) = level;  // too much to carry: cut less
  }
  return best_length < before ? best : std::vector<SlotTransfer>{};
}

}  // namespace sluice
