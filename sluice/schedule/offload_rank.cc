#include "sluice/schedule/offload_rank.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace sluice {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// A unit's way out and back: when its D is over, before which pass its U stands, when that starts.
struct Trip {
  bool out_done = false;
  std::int64_t out_end = 0;
  int in_place = -1;
  std::int64_t in_begin = 0;
};

class Link {
 public:
  Link(const OffloadRank& rank, std::vector<bool>& moves, bool one_direction, int backlog)
      : rank_(rank), moves_(moves), backlog_(backlog), one_direction_(one_direction) {
    trips_.resize(rank.units.size());
    for (std::size_t u = 0; u < rank.units.size(); ++u) {
      if (moves[u]) by_forward_.push_back(static_cast<int>(u));
    }
    std::sort(by_forward_.begin(), by_forward_.end(),
              [&](int a, int b) { return unit(a).forward < unit(b).forward; });
    find_latest_starts();
  }

  // Whether every unit that should move does; those that cannot are no longer marked in `moves`.
  bool run() {
    one_direction_ ? run_one_direction() : run_both_directions();
    return !lost_any_;
  }

  std::vector<OffloadItem> list() const {
    std::vector<OffloadItem> items;
    std::size_t out = 0;
    std::size_t in = 0;
    const auto put_outs = [&](std::int64_t until, int place) {
      for (; out < out_order_.size(); ++out) {
        const int u = out_order_[out];
        if (trip(u).out_end > until || unit(u).forward >= place) return;
        items.push_back({OffloadItem::kOut, u});
      }
    };
    std::size_t next_forward = 0;
    std::vector<int> forwards;
    for (const OffloadUnit& each : rank_.units) forwards.push_back(each.forward);
    std::sort(forwards.begin(), forwards.end());
    for (int j = 0; j < static_cast<int>(rank_.passes.size()); ++j) {
      for (; in < in_order_.size() && trip(in_order_[in]).in_place == j; ++in) {
        put_outs(trip(in_order_[in]).in_begin, j);
        items.push_back({OffloadItem::kIn, in_order_[in]});
      }
      if (next_forward < forwards.size() && forwards[next_forward] == j) {
        put_outs(rank_.passes[static_cast<std::size_t>(j)].begin, j);
        ++next_forward;
      }
      items.push_back({OffloadItem::kPass, j});
    }
    return items;
  }

 private:
  const OffloadUnit& unit(int u) const { return rank_.units[static_cast<std::size_t>(u)]; }
  Trip& trip(int u) { return trips_[static_cast<std::size_t>(u)]; }
  const Trip& trip(int u) const { return trips_[static_cast<std::size_t>(u)]; }
  std::int64_t end_of(int pass) const { return rank_.passes[static_cast<std::size_t>(pass)].end; }
  std::int64_t begin_of(int pass) const {
    return rank_.passes[static_cast<std::size_t>(pass)].begin;
  }

  // Copies back follow each other up to their backwards: the latest start of each.
  void find_latest_starts() {
    latest_.assign(rank_.units.size(), kNever);
    latest_boundary_.assign(rank_.units.size(), kNever);
    std::int64_t next = kNever;
    for (std::size_t u = rank_.units.size(); u-- > 0;) {
      if (!moves_[u]) continue;
      next = std::min(begin_of(rank_.units[u].backward), next) - rank_.units[u].in;
      latest_[u] = next;
    }
    std::int64_t boundary = 0;
    std::size_t pass = 0;
    for (std::size_t u = 0; u < rank_.units.size(); ++u) {
      if (!moves_[u]) continue;
      while (pass < rank_.passes.size() && rank_.passes[pass].end <= latest_[u]) {
        boundary = rank_.passes[pass++].end;
      }
      latest_boundary_[u] = boundary;
    }
  }

  void lose(int u) {
    moves_[static_cast<std::size_t>(u)] = false;
    lost_any_ = true;
  }

  // Takes the forwards that have ended by `time` among those that wait for their D.
  void release(std::int64_t time) {
    while (next_release_ < by_forward_.size()) {
      const int u = by_forward_[next_release_];
      if (end_of(unit(u).forward) > time) return;
      ++next_release_;
      if (!moves_[static_cast<std::size_t>(u)]) continue;
      waiting_.push_back(u);
      if (static_cast<int>(waiting_.size()) <= backlog_) continue;
      const auto soonest = std::min_element(waiting_.begin(), waiting_.end());
      lose(*soonest);
      waiting_.erase(soonest);
    }
  }

  // The next activation to copy out when the link is free from `free` on, first come first served;
  // -1: none is left. Those that would have to start back before they are out stay.
  int next_out(std::int64_t free) {
    release(free);
    while (true) {
      if (waiting_.empty()) {
        if (next_release_ == by_forward_.size()) return -1;
        release(end_of(unit(by_forward_[next_release_]).forward));
        continue;
      }
      const int u = waiting_.front();
      if (out_begin(u, free) + unit(u).out <= latest_[static_cast<std::size_t>(u)]) return u;
      lose(u);
      waiting_.erase(waiting_.begin());
    }
  }

  std::int64_t out_begin(int u, std::int64_t free) const {
    return std::max(free, end_of(unit(u).forward));
  }

  // The last pass that has ended by `time`; a U stands behind it.
  int boundary_at(std::int64_t time) {
    while (boundary_ + 1 < static_cast<int>(rank_.passes.size()) && end_of(boundary_ + 1) <= time) {
      ++boundary_;
    }
    return boundary_;
  }

  void copy_out(int u, std::int64_t begin) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), u));
    trip(u).out_done = true;
    trip(u).out_end = begin + unit(u).out;
    out_order_.push_back(u);
  }

  void copy_in(int u, std::int64_t not_before, std::int64_t ready_by) {
    const int after = boundary_at(ready_by);
    trip(u).in_place = after + 1;
    trip(u).in_begin = std::max(after < 0 ? 0 : end_of(after), not_before);
    in_order_.push_back(u);
  }

  void run_one_direction() {
    std::int64_t free = 0;
    int back = 0;  // units are in the order of their backwards
    const int num_units = static_cast<int>(rank_.units.size());
    while (true) {
      const int out = next_out(free);
      while (back < num_units && !moves_[static_cast<std::size_t>(back)]) ++back;
      if (out < 0 && back == num_units) return;
      const std::int64_t latest =
          back == num_units ? kNever : latest_[static_cast<std::size_t>(back)];
      const std::int64_t begin = out < 0 ? kNever : out_begin(out, free);
      // A U that is ready when a D could start goes first, so the U must be ready after that.
      const bool is_later =
          back == num_units || (out >= 0 && begin + unit(out).out <= latest &&
                                latest_boundary_[static_cast<std::size_t>(back)] > begin);
      if (out >= 0 && is_later) {
        copy_out(out, begin);
        free = trip(out).out_end;
        continue;
      }
      const int in = back++;
      if (!trip(in).out_done) {
        lose(in);
        continue;
      }
      copy_in(in, free, std::min(latest, begin));
      free = trip(in).in_begin + unit(in).in;
    }
  }

  void run_both_directions() {
    std::int64_t free = 0;
    for (int out = next_out(free); out >= 0; out = next_out(free)) {
      copy_out(out, out_begin(out, free));
      free = trip(out).out_end;
    }
    free = 0;
    for (int u = 0; u < static_cast<int>(rank_.units.size()); ++u) {
      if (!moves_[static_cast<std::size_t>(u)]) continue;
      copy_in(u, std::max(free, trip(u).out_end), latest_[static_cast<std::size_t>(u)]);
      free = trip(u).in_begin + unit(u).in;
    }
  }

  const OffloadRank& rank_;
  std::vector<bool>& moves_;
  int backlog_;
  bool one_direction_;
  bool lost_any_ = false;
  std::vector<Trip> trips_;
  std::vector<std::int64_t> latest_;           // per unit: when its U starts at the latest
  std::vector<std::int64_t> latest_boundary_;  // the end of the last pass before that
  std::vector<int> by_forward_;  // units that should move, in the order of their forwards
  std::size_t next_release_ = 0;
  std::vector<int> waiting_;
  int boundary_ = -1;
  std::vector<int> out_order_;
  std::vector<int> in_order_;
};

}  // namespace

std::vector<OffloadItem> time_copies(const OffloadRank& rank, std::vector<bool> moves,
                                     bool one_direction, int backlog) {
  // A unit that had to stay has made others start back earlier than they need to: once more without
  // it, until nothing is lost.
  while (true) {
    Link link(rank, moves, one_direction, backlog);
    if (link.run()) return link.list();
  }
}

RankOffload measure(const OffloadRank& rank, const std::vector<OffloadItem>& list) {
  enum Role : std::uint8_t { kNone, kForward, kBackward, kLast, kBoth };
  std::vector<Role> role(rank.passes.size(), kNone);
  std::vector<int> unit_of(rank.passes.size(), -1);
  for (std::size_t u = 0; u < rank.units.size(); ++u) {
    const OffloadUnit& unit = rank.units[u];
    for (const int pass : {unit.forward, unit.backward, unit.last}) {
      unit_of[static_cast<std::size_t>(pass)] = static_cast<int>(u);
    }
    role[static_cast<std::size_t>(unit.forward)] = kForward;
    role[static_cast<std::size_t>(unit.backward)] = kBackward;
    role[static_cast<std::size_t>(unit.last)] = unit.last == unit.backward ? kBoth : kLast;
  }
  std::vector<bool> moved(rank.units.size(), false);
  for (const OffloadItem& item : list) {
    if (item.kind == OffloadItem::kOut) moved[static_cast<std::size_t>(item.index)] = true;
  }
  RankOffload result;
  std::int64_t before = 0;
  std::int64_t held = 0;
  std::int64_t away = 0;
  for (const OffloadItem& item : list) {
    const auto index = static_cast<std::size_t>(item.index);
    if (item.kind == OffloadItem::kOut) {
      held -= rank.units[index].size;
      ++result.num_moved;
    } else if (item.kind == OffloadItem::kIn) {
      held += rank.units[index].size;
    } else if (unit_of[index] >= 0) {
      const auto u = static_cast<std::size_t>(unit_of[index]);
      const std::int64_t size = rank.units[u].size;
      if (role[index] == kForward) {
        before += size;
        held += size;
        if (moved[u]) away += size;
      }
      if (moved[u] && (role[index] == kBackward || role[index] == kBoth)) away -= size;
      result.peak_before = std::max(result.peak_before, before);
      result.peak = std::max(result.peak, held);
      result.peak_away = std::max(result.peak_away, away);
      if (role[index] == kLast || role[index] == kBoth) {
        before -= size;
        held -= size;
      }
    }
    result.peak = std::max(result.peak, held);
  }
  return result;
}

}  // namespace sluice
