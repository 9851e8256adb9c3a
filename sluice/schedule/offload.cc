#include "sluice/schedule/offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/offload_rank.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

bool is_copy_pass(const Pass& pass) { return is_copy(pass.kind); }

OffloadRank read_rank(const Schedule& schedule, int rank, const std::vector<PassInterval>& times,
                      const OffloadCosts& costs) {
  const std::vector<Pass>& passes = schedule.ranks[static_cast<std::size_t>(rank)];
  const UnitIndex index(schedule);
  std::vector<std::int32_t> forward_of(index.size(), -1);
  std::vector<std::int32_t> unit_of(index.size(), -1);
  OffloadRank result{.passes = times, .units = {}};
  for (int i = 0; i < static_cast<int>(passes.size()); ++i) {
    const Pass& pass = passes[static_cast<std::size_t>(i)];
    const std::size_t at = index(pass);
    if (pass.kind == PassKind::kForward) {
      forward_of[at] = i;
    } else if (is_backward(pass.kind)) {
      unit_of[at] = static_cast<std::int32_t>(result.units.size());
      const auto stage = static_cast<std::size_t>(pass.stage);
      result.units.push_back({.forward = forward_of[at],
                              .backward = i,
                              .last = i,
                              .out = costs.out[stage],
                              .in = costs.in[stage],
                              .size = costs.size.empty() ? 1 : costs.size[stage]});
    } else if (pass.kind == PassKind::kBackwardWeight) {
      result.units[static_cast<std::size_t>(unit_of[at])].last = i;
    }
  }
  return result;
}

std::int64_t lifespan(const OffloadRank& rank, const OffloadUnit& unit) {
  return rank.passes[static_cast<std::size_t>(unit.backward)].begin -
         rank.passes[static_cast<std::size_t>(unit.forward)].end;
}

// The units that may move, longest lifespan first.
std::vector<int> candidates(const OffloadRank& rank, const std::vector<int>& chunk_of_unit,
                            int num_chunks, const OffloadAmount& amount) {
  std::vector<double> total(static_cast<std::size_t>(num_chunks), 0.0);
  std::vector<double> count(static_cast<std::size_t>(num_chunks), 0.0);
  for (std::size_t u = 0; u < rank.units.size(); ++u) {
    const auto chunk = static_cast<std::size_t>(chunk_of_unit[u]);
    total[chunk] += static_cast<double>(lifespan(rank, rank.units[u]));
    count[chunk] += 1.0;
  }
  std::vector<int> chunks(static_cast<std::size_t>(num_chunks));
  std::iota(chunks.begin(), chunks.end(), 0);
  std::stable_sort(chunks.begin(), chunks.end(), [&](int a, int b) {
    const auto i = static_cast<std::size_t>(a);
    const auto j = static_cast<std::size_t>(b);
    return total[i] * count[j] > total[j] * count[i];
  });
  std::vector<bool> may(static_cast<std::size_t>(num_chunks), false);
  for (int c = 0; c < std::min(amount.num_chunks, num_chunks); ++c) {
    may[static_cast<std::size_t>(chunks[static_cast<std::size_t>(c)])] = true;
  }
  std::vector<int> units;
  for (std::size_t u = 0; u < rank.units.size(); ++u) {
    if (may[static_cast<std::size_t>(chunk_of_unit[u])]) units.push_back(static_cast<int>(u));
  }
  std::stable_sort(units.begin(), units.end(), [&](int a, int b) {
    return lifespan(rank, rank.units[static_cast<std::size_t>(a)]) >
           lifespan(rank, rank.units[static_cast<std::size_t>(b)]);
  });
  units.resize((units.size() * static_cast<std::size_t>(amount.num_units_percent) + 99) / 100);
  return units;
}

// The numbers of longest-lived units to try: where the lifespan changes, thinned out when there are
// very many.
std::vector<std::size_t> cuts(const OffloadRank& rank, const std::vector<int>& units) {
  constexpr std::size_t kMost = 48;
  std::vector<std::size_t> all;
  for (std::size_t n = 1; n <= units.size(); ++n) {
    if (n == units.size() ||
        lifespan(rank, rank.units[static_cast<std::size_t>(units[n])]) !=
            lifespan(rank, rank.units[static_cast<std::size_t>(units[n - 1])])) {
      all.push_back(n);
    }
  }
  if (all.size() <= kMost) return all;
  std::vector<std::size_t> some;
  for (std::size_t i = 1; i <= kMost; ++i) some.push_back(all[i * all.size() / kMost - 1]);
  return some;
}

// The peak when the longest-lived `num_units` take no memory at all.
std::int64_t peak_of_staying(const OffloadRank& rank, const std::vector<int>& units,
                             std::size_t num_units) {
  std::vector<std::int64_t> change(rank.passes.size() + 1, 0);
  for (const OffloadUnit& unit : rank.units) {
    change[static_cast<std::size_t>(unit.forward)] += unit.size;
    change[static_cast<std::size_t>(unit.last) + 1] -= unit.size;
  }
  for (std::size_t n = 0; n < num_units; ++n) {
    const OffloadUnit& unit = rank.units[static_cast<std::size_t>(units[n])];
    change[static_cast<std::size_t>(unit.forward)] -= unit.size;
    change[static_cast<std::size_t>(unit.last) + 1] += unit.size;
  }
  std::int64_t held = 0;
  std::int64_t peak = 0;
  for (const std::int64_t by : change) peak = std::max(peak, held += by);
  return peak;
}

struct RankChoice {
  std::vector<OffloadItem> list;
  RankOffload result;
};

/// What a plan is made from: the units that live at least so long move, with at most so many
/// waiting.
struct Attempt {
  std::int64_t shortest = 0;
  int backlog = 1;
  std::int64_t peak = 0;
  int num_moved = 0;
};

bool is_better(const Attempt& a, const Attempt& b) {
  return std::tie(a.peak, a.num_moved) < std::tie(b.peak, b.num_moved);
}

constexpr std::array<int, 5> kBacklogs = {1 << 20, 5, 3, 2, 1};

class RankSearch {
 public:
  /// Keeps references to both; `units` are those that may move, longest lifespan first.
  RankSearch(const OffloadRank& rank, const std::vector<int>& units, bool one_direction)
      : rank_(rank), units_(units), one_direction_(one_direction) {}

  RankChoice carry_out(std::size_t num_units, int backlog) const {
    std::vector<bool> moves(rank_.units.size(), false);
    for (std::size_t n = 0; n < num_units; ++n) moves[static_cast<std::size_t>(units_[n])] = true;
    RankChoice choice;
    choice.list = time_copies(rank_, std::move(moves), one_direction_, backlog);
    choice.result = measure(rank_, choice.list);
    return choice;
  }

  /// Tells `use` of every plan that may be better than all before it, and of the one that moves
  /// nothing.
  void try_all(const std::function<void(const Attempt&, RankChoice)>& use) const {
    std::int64_t least = 0;
    const auto attempt = [&](std::size_t num_units, int backlog) {
      RankChoice choice = carry_out(num_units, backlog);
      const RankOffload result = choice.result;
      least = num_units == 0 ? result.peak : std::min(least, result.peak);
      const std::int64_t shortest =
          num_units == 0 ? std::numeric_limits<std::int64_t>::max() : lifespan_of(num_units - 1);
      use({shortest, backlog, result.peak, result.num_moved}, std::move(choice));
    };
    attempt(0, 1);
    const std::vector<std::size_t> all = cuts(rank_, units_);
    for (std::size_t c = all.size(); c-- > 0;) {
      // With fewer units moving, more stay: no later attempt can be better either.
      if (peak_of_staying(rank_, units_, all[c]) > least) break;
      for (const int backlog : kBacklogs) attempt(all[c], backlog);
    }
  }

  /// How many units live at least so long.
  std::size_t num_units(std::int64_t shortest) const {
    std::size_t count = 0;
    while (count < units_.size() && lifespan_of(count) >= shortest) ++count;
    return count;
  }

 private:
  std::int64_t lifespan_of(std::size_t n) const {
    return lifespan(rank_, rank_.units[static_cast<std::size_t>(units_[n])]);
  }

  const OffloadRank& rank_;
  const std::vector<int>& units_;
  const bool one_direction_;
};

std::size_t most_at_once(const OffloadRank& rank) {
  std::vector<int> change(rank.passes.size() + 1, 0);
  for (const OffloadUnit& unit : rank.units) {
    ++change[static_cast<std::size_t>(unit.forward)];
    --change[static_cast<std::size_t>(unit.last) + 1];
  }
  int held = 0;
  int most = 0;
  for (const int by : change) most = std::max(most, held += by);
  return static_cast<std::size_t>(most);
}

/// The beginning of a rank's list: the first units that are needed back, and their passes.
struct Beginning {
  OffloadRank rank;
  std::vector<int> units;  // that may move

  Beginning(const OffloadRank& whole, const std::vector<int>& all, std::size_t num_units) {
    rank.units.assign(whole.units.begin(),
                      whole.units.begin() + static_cast<std::ptrdiff_t>(num_units));
    std::vector<int> place(whole.passes.size(), -1);
    for (const OffloadUnit& unit : rank.units) {
      for (const int pass : {unit.forward, unit.backward, unit.last}) {
        place[static_cast<std::size_t>(pass)] = 0;
      }
    }
    for (std::size_t i = 0; i < place.size(); ++i) {
      if (place[i] < 0) continue;
      place[i] = static_cast<int>(rank.passes.size());
      rank.passes.push_back(whole.passes[i]);
    }
    for (OffloadUnit& unit : rank.units) {
      for (int* pass : {&unit.forward, &unit.backward, &unit.last}) {
        *pass = place[static_cast<std::size_t>(*pass)];
      }
    }
    for (const int unit : all) {
      if (static_cast<std::size_t>(unit) < num_units) units.push_back(unit);
    }
  }
};

RankChoice choose(const OffloadRank& rank, const std::vector<int>& units, bool one_direction) {
  const RankSearch whole(rank, units, one_direction);
  std::optional<RankChoice> best;
  const auto keep_better = [&](RankChoice choice) {
    if (!best || std::tie(choice.result.peak, choice.result.num_moved) <
                     std::tie(best->result.peak, best->result.num_moved)) {
      best = std::move(choice);
    }
  };
  constexpr std::size_t kBeginning = 512;
  const std::size_t num_units = std::max(kBeginning, 8 * most_at_once(rank));
  if (rank.units.size() < 2 * num_units) {
    whole.try_all([&](const Attempt&, RankChoice choice) { keep_better(std::move(choice)); });
    return std::move(*best);
  }
  // A step of very many microbatches repeats itself: what is best for its beginning is among the
  // best for all of it. Of each backlog the best attempts are carried out in full.
  constexpr std::size_t kOfEach = 2;
  const Beginning beginning(rank, units, num_units);
  std::vector<Attempt> attempts;
  RankSearch(beginning.rank, beginning.units, one_direction)
      .try_all([&](const Attempt& attempt, const RankChoice&) { attempts.push_back(attempt); });
  std::stable_sort(attempts.begin(), attempts.end(), is_better);
  keep_better(whole.carry_out(0, 1));
  for (const int backlog : kBacklogs) {
    std::size_t count = 0;
    for (const Attempt& attempt : attempts) {
      if (attempt.backlog != backlog || count == kOfEach) continue;
      ++count;
      keep_better(whole.carry_out(whole.num_units(attempt.shortest), backlog));
    }
  }
  return std::move(*best);
}

void check_costs(const Schedule& schedule, const PassTimetable& times, const OffloadCosts& costs) {
  const auto num_stages = static_cast<std::size_t>(schedule.num_stages());
  SLUICE_CHECK(costs.out.size() == num_stages && costs.in.size() == num_stages &&
                   (costs.size.empty() || costs.size.size() == num_stages),
               "copies of {} and {} stages for {}", costs.out.size(), costs.in.size(), num_stages);
  for (const std::vector<std::int64_t>* ticks : {&costs.out, &costs.in}) {
    for (const std::int64_t value : *ticks) {
      if (value < 0) {
        throw InvalidArgument(
            fmt::format("a copy of {} ticks: the offload ratio must be 0 or more", value));
      }
    }
  }
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    SLUICE_CHECK(times[rank].size() == schedule.ranks[rank].size(), "{} times for {} passes",
                 times[rank].size(), schedule.ranks[rank].size());
  }
}

}  // namespace

OffloadAmount parse_offload(const std::string& option, const std::string& text,
                            const Placement& placement) {
  int num_chunks = 0;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    num_chunks = std::max(num_chunks, static_cast<int>(placement.stages_of(rank).size()));
  }
  if (text == "none" || text.empty()) return {0, 100};
  if (text == "full" || text == "auto") return {num_chunks, 100};
  if (text == "half") return {(num_chunks + 1) / 2, num_chunks == 1 ? 50 : 100};
  int count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || stop != end || count < 0 || count > num_chunks) {
    throw InvalidArgument(
        fmt::format("{} {}: must be none, half, full, or a count of chunks from 0 to {}, the "
                    "stages of a rank",
                    option, text, num_chunks));
  }
  return {count, 100};
}

OffloadPlan plan_offload(const Schedule& schedule, const PassTimetable& times,
                         const OffloadCosts& costs, const OffloadAmount& amount) {
  SLUICE_CHECK(!has_offload(schedule), "{} has offload passes already", schedule.name);
  check_costs(schedule, times, costs);
  const PassTimetable late = delay_warm_up(schedule, times, costs.message);
  OffloadPlan plan{.schedule = schedule, .ranks = {}};
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const OffloadRank read = read_rank(schedule, rank, late[r], costs);
    std::vector<int> chunk_of_unit;
    for (const OffloadUnit& unit : read.units) {
      chunk_of_unit.push_back(schedule.placement.chunk_of(
          schedule.ranks[r][static_cast<std::size_t>(unit.forward)].stage));
    }
    const std::vector<int> units = candidates(
        read, chunk_of_unit, static_cast<int>(schedule.placement.stages_of(rank).size()), amount);
    const RankChoice best = choose(read, units, costs.one_direction);
    std::vector<Pass>& passes = plan.schedule.ranks[r];
    passes.clear();
    for (const OffloadItem& item : best.list) {
      const auto i = static_cast<std::size_t>(item.index);
      Pass pass = schedule.ranks[r][item.kind == OffloadItem::kPass
                                        ? i
                                        : static_cast<std::size_t>(read.units[i].forward)];
      if (item.kind == OffloadItem::kOut) pass.kind = PassKind::kOffload;
      if (item.kind == OffloadItem::kIn) pass.kind = PassKind::kReload;
      passes.push_back(pass);
    }
    plan.ranks.push_back(best.result);
  }
  return plan;
}

Schedule without_offload(Schedule schedule) {
  for (std::vector<Pass>& passes : schedule.ranks) std::erase_if(passes, is_copy_pass);
  return schedule;
}

bool has_offload(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& passes) {
    return std::any_of(passes.begin(), passes.end(), is_copy_pass);
  });
}

}  // namespace sluice
