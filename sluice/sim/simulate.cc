#include "sluice/sim/simulate.h"

#include <algorithm>
#include <limits>

#include "sluice/common/errors.h"
#include "sluice/sim/copy_lanes.h"
#include "sluice/sim/exchange_cost.h"
#include "sluice/sim/memory_walk.h"

namespace sluice {
namespace {

constexpr std::int64_t kUnknown = -1;
constexpr std::int64_t kUnsettled = -2;  // a copy out that has been posted and not timed yet

// One rank's place in its list and what has been counted on the way.
struct RankState {
  std::size_t cursor = 0;
  std::size_t waits_for = std::numeric_limits<std::size_t>::max();  // a send, as index into ends
  std::vector<std::int32_t> collectives;                            // issued so far
  std::int64_t compute_free = 0;
  std::int64_t first_begin = kUnknown;
  std::int64_t last_end = 0;
  std::int64_t busy = 0;
  std::int64_t saved = 0;
  std::int64_t peak_saved = 0;
  std::int64_t saved_until_input = 0;
  std::int64_t peak_until_input = 0;
  std::int64_t away = 0;
  std::int64_t peak_away = 0;
};

// Walks each rank's list as far as its inputs are known, again when a message that it waits for has
// been sent. Every action has one end time however the ranks take turns: a longest path.
class LongestPath {
 public:
  LongestPath(const Program& program, const CostModel& cost)
      : program_(program), cost_(cost), states_(program.ranks.size()) {
    std::size_t num_actions = 0;
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      base_.push_back(num_actions);
      num_actions += program.ranks[rank].actions.size();
      times_.emplace_back(program, cost, rank);
    }
    ends_.assign(num_actions, kUnknown);
    copies_.assign(program.ranks.size(), CopyLanes(cost.copies_one_direction));
    if (cost.messages_occupy_link) {
      link_free_.assign(2 * program.ranks.size() * program.ranks.size(), 0);
    }
  }

  void run() {
    for (std::size_t rank = states_.size(); rank-- > 0;) ready_.push_back(rank);
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      const std::vector<Action>& actions = program_.ranks[rank].actions;
      SLUICE_CHECK(states_[rank].cursor == actions.size(),
                   "rank {} can never run {}: the program has a cycle", rank,
                   to_string(actions[states_[rank].cursor]));
    }
  }

  const RankState& state(std::size_t rank) const { return states_[rank]; }

  // End of an action, or arrival of a message.
  std::int64_t end_of(std::size_t rank, std::size_t action) const {
    const Action& what = program_.ranks[rank].actions[action];
    return what.kind == ActionKind::kReceive ? ends_[send_of(what)] : ends_[base_[rank] + action];
  }

 private:
  std::size_t send_of(const Action& receive) const {
    return base_[static_cast<std::size_t>(receive.peer)] +
           static_cast<std::size_t>(receive.peer_action);
  }

  void advance(std::size_t rank) {
    RankState& state = states_[rank];
    const RankProgram& list = program_.ranks[rank];
    const std::size_t num_actions = list.actions.size();
    std::int64_t* ends = ends_.data() + base_[rank];
    for (; state.cursor < num_actions; ++state.cursor) {
      const Action& action = list.actions[state.cursor];
      // A receive may wait for a long time without holding up the list: its consumer asks for it.
      if (action.kind == ActionKind::kReceive) continue;
      std::int64_t begin = 0;
      for (const std::int32_t d : list.dependencies_of(state.cursor)) {
        const auto dependency = static_cast<std::size_t>(d);
        std::int64_t end = ends[dependency];
        if (end == kUnsettled) {
          copies_[rank].settle(dependency, [&](std::size_t k, std::int64_t at) { ends[k] = at; });
          end = ends[dependency];
        }
        if (end == kUnknown && list.actions[dependency].kind == ActionKind::kCollective) {
          state.waits_for = base_[rank] + dependency;
          return prefetch(list, state.cursor, ends);
        }
        if (end == kUnknown) {
          const std::size_t send = send_of(list.actions[dependency]);
          SLUICE_CHECK(send < ends_.size(), "{} has no sender",
                       to_string(list.actions[dependency]));
          end = ends_[send];
          if (end == kUnknown) {
            state.waits_for = send;
            return prefetch(list, state.cursor, ends);
          }
        }
        begin = std::max(begin, end);
      }
      if (action.kind == ActionKind::kSend) {
        ends[state.cursor] = send(rank, action, begin);
        RankState& peer = states_[static_cast<std::size_t>(action.peer)];
        if (peer.waits_for == base_[rank] + state.cursor) {
          peer.waits_for = std::numeric_limits<std::size_t>::max();
          ready_.push_back(static_cast<std::size_t>(action.peer));
        }
      } else if (is_copy_action(action)) {
        copy(rank, action, begin, ends);
      } else if (action.kind == ActionKind::kCollective) {
        join(rank, begin);
      } else {
        count_copies(state, list, state.cursor);
        ends[state.cursor] = compute(rank, action, std::max(begin, state.compute_free));
      }
    }
  }

  void copy(std::size_t rank, const Action& action, std::int64_t begin, std::int64_t* ends) {
    RankState& state = states_[rank];
    const std::int64_t duration = cost_.duration(action.pass);
    if (action.pass.kind == PassKind::kOffload) {
      copies_[rank].post_out(state.cursor, begin, duration);
      ends[state.cursor] = kUnsettled;
      state.peak_away = std::max(state.peak_away, ++state.away);
    } else {
      count_copies(state, program_.ranks[rank], state.cursor);
      ends[state.cursor] = copies_[rank].copy_in(
          begin, duration, [&](std::size_t k, std::int64_t at) { ends[k] = at; });
      state.peak_saved = std::max(state.peak_saved, ++state.saved);
      state.peak_until_input = std::max(state.peak_until_input, ++state.saved_until_input);
    }
  }

  // Memory that copies out have freed before an action starts, and what came back for it.
  void count_copies(RankState& state, const RankProgram& list, std::size_t at) {
    for (const std::int32_t d : list.dependencies_of(at)) {
      const Action& needed = list.actions[static_cast<std::size_t>(d)];
      if (!is_copy_action(needed)) continue;
      if (needed.pass.kind == PassKind::kReload) {
        --state.away;
      } else if (released_.empty() || !released_[base_of(list) + static_cast<std::size_t>(d)]) {
        if (released_.empty()) released_.assign(ends_.size(), false);
        released_[base_of(list) + static_cast<std::size_t>(d)] = true;
        --state.saved;
        --state.saved_until_input;
      }
    }
  }
  std::size_t base_of(const RankProgram& list) const {
    return base_[static_cast<std::size_t>(&list - program_.ranks.data())];
  }

  // Many ranks take turns, and each has its own place in memory: fetch what its next turn reads.
  static void prefetch(const RankProgram& list, std::size_t cursor, const std::int64_t* ends) {
    const auto* actions = reinterpret_cast<const char*>(list.actions.data() + cursor);
    for (int line = 1; line < 6; ++line) __builtin_prefetch(actions + 64 * line);
    __builtin_prefetch(list.dependency_begin.data() + cursor + 16);
    __builtin_prefetch(list.dependencies.data() + list.dependency_begin[cursor] + 16);
    __builtin_prefetch(ends + cursor + 8, 1);
  }

  std::int64_t send(std::size_t rank, const Action& action, std::int64_t begin) {
    if (link_free_.empty()) return begin + cost_.message_duration(rank);
    const std::size_t direction = action.lane == Lane::kSendForward ? 0 : 1;
    std::int64_t& link =
        link_free_[2 * (rank * states_.size() + static_cast<std::size_t>(action.peer)) + direction];
    return link = std::max(begin, link) + cost_.message_duration(rank);
  }

  // The k-th collective of every rank is the same one. Like messages, collectives are on their way
  // side by side: what one takes is latency.
  void join(std::size_t rank, std::int64_t begin) {
    std::vector<std::int32_t>& mine = states_[rank].collectives;
    const std::size_t ordinal = mine.size();
    mine.push_back(static_cast<std::int32_t>(states_[rank].cursor));
    if (joined_.size() <= ordinal) joined_.resize(ordinal + 1);
    Joined& all = joined_[ordinal];
    all.begin = std::max(all.begin, begin);
    if (++all.count < states_.size()) return;
    const Collective kind =
        program_.ranks[rank].actions[static_cast<std::size_t>(mine.back())].collective;
    const std::int64_t end = all.begin + cost_.collective_duration(kind);
    for (std::size_t other = 0; other < states_.size(); ++other) {
      RankState& peer = states_[other];
      const std::size_t at = base_[other] + static_cast<std::size_t>(peer.collectives[ordinal]);
      ends_[at] = end;
      if (peer.waits_for != at) continue;
      peer.waits_for = std::numeric_limits<std::size_t>::max();
      ready_.push_back(other);
    }
  }

  std::int64_t compute(std::size_t rank, const Action& action, std::int64_t begin) {
    if (action.kind == ActionKind::kOptimizer) return begin;
    RankState& state = states_[rank];
    const PassTime time = times_[rank].next(action.pass);
    if (state.first_begin == kUnknown) state.first_begin = begin;
    state.busy += time.work;
    state.compute_free = state.last_end = begin + time.length;
    count_saved(state, action.pass.kind);
    return state.compute_free;
  }

  static void count_saved(RankState& state, PassKind kind) {
    switch (kind) {
      case PassKind::kForward:
        state.peak_saved = std::max(state.peak_saved, ++state.saved);
        state.peak_until_input = std::max(state.peak_until_input, ++state.saved_until_input);
        break;
      case PassKind::kBackward:
        --state.saved;
        --state.saved_until_input;
        break;
      case PassKind::kBackwardInput:
        --state.saved_until_input;
        break;
      case PassKind::kBackwardWeight:
        --state.saved;
        break;
      default:
        break;
    }
  }

  const Program& program_;
  const CostModel& cost_;
  std::vector<RankState> states_;
  std::vector<PassTimes> times_;
  std::vector<std::size_t> base_;  // of each rank's actions in ends_
  std::vector<std::int64_t> ends_;
  std::vector<std::int64_t> link_free_;  // per (source, destination, direction)
  std::vector<std::size_t> ready_;
  std::vector<CopyLanes> copies_;  // per rank
  std::vector<bool> released_;     // per action: a D whose memory has been counted free

  struct Joined {
    std::size_t count = 0;
    std::int64_t begin = 0;
  };
  std::vector<Joined> joined_;  // per collective, in the order of all ranks
};

// No path is longer than all passes and messages one after the other.
void check_range(const Program& program, const CostModel& cost) {
  SLUICE_CHECK(cost.num_stages == program.num_stages() && cost.num_slices == program.num_slices,
               "costs for {} stages and {} slices, program of {} and {}", cost.num_stages,
               cost.num_slices, program.num_stages(), program.num_slices);
  double total = 0.0;
  for (const std::vector<std::int64_t>& row : cost.ticks) {
    for (const std::int64_t ticks : row) {
      SLUICE_CHECK(ticks >= 0, "a pass takes {} ticks", ticks);
      total += static_cast<double>(ticks);
    }
  }
  std::int64_t message = 0;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const std::int64_t ticks = cost.message_duration(rank);
    SLUICE_CHECK(ticks >= 0, "a message takes {} ticks", ticks);
    message = std::max(message, ticks);
  }
  for (const std::int64_t ticks : cost.collective_ticks) {
    SLUICE_CHECK(ticks >= 0, "a collective takes {} ticks", ticks);
    total += static_cast<double>(ticks) * cost.num_slices;
  }
  total += 2.0 * static_cast<double>(message) * cost.num_stages * cost.num_slices;
  const double carried = 2.0 * cost.num_slices * static_cast<double>(cost.link.per_half) +
                         program.num_ranks() * static_cast<double>(cost.link.per_transfer);
  total += 4.0 * carried * cost.num_stages * cost.num_slices;
  if (total * program.num_microbatches > 9e18) {
    throw InvalidArgument("the times are too long to add up exactly; give them in a larger unit");
  }
}

BubbleReport report_bubble(const std::vector<RankState>& states) {
  BubbleReport report;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  std::int64_t longest_span = 0;
  double busy = 0.0;
  for (const RankState& state : states) {
    if (state.first_begin == kUnknown) continue;
    first = std::min(first, state.first_begin);
    last = std::max(last, state.last_end);
    longest_span = std::max(longest_span, state.last_end - state.first_begin);
    report.work = std::max(report.work, state.busy);
    busy += static_cast<double>(state.busy);
  }
  report.makespan = std::max<std::int64_t>(0, last - first);
  if (report.makespan > 0) {
    report.bubble_fraction =
        1.0 - busy / (static_cast<double>(report.makespan) * static_cast<double>(states.size()));
  }
  if (longest_span > 0) {
    report.span_bubble_fraction =
        static_cast<double>(longest_span - report.work) / static_cast<double>(longest_span);
  }
  return report;
}

Timeline draw_timeline(const Program& program, const CostModel& cost, const LongestPath& path) {
  Timeline timeline{.name = program.name,
                    .seconds_per_tick = cost.unit_per_tick,
                    .num_slices = program.num_slices,
                    .num_stages = program.num_stages(),
                    .ranks = {}};
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const std::vector<Action>& actions = program.ranks[rank].actions;
    PassTimes times(program, cost, rank);
    std::vector<Span>& spans = timeline.ranks.emplace_back();
    spans.reserve(actions.size());
    for (std::size_t k = 0; k < actions.size(); ++k) {
      const Action& action = actions[k];
      const std::int64_t end = path.end_of(rank, k);
      const std::int64_t duration =
          action.kind == ActionKind::kPass         ? times.next(action.pass).length
          : action.kind == ActionKind::kSend       ? cost.message_duration(rank)
          : action.kind == ActionKind::kCollective ? cost.collective_duration(action.collective)
                                                   : 0;
      spans.push_back({action.kind, action.lane, action.peer, action.pass, end - duration, end,
                       action.collective});
    }
    // Messages from different peers share a receive lane and arrive in any order.
    std::stable_sort(spans.begin(), spans.end(),
                     [](const Span& a, const Span& b) { return a.begin < b.begin; });
  }
  return timeline;
}

// Takes off what the copies out that action `k` waits for have freed. Returns whether there was
// any.
bool free_copied(const RankProgram& list, std::size_t k, std::vector<bool>& released,
                 MemoryWalk& walk) {
  bool any = false;
  for (const std::int32_t d : list.dependencies_of(k)) {
    const auto at = static_cast<std::size_t>(d);
    const Action& needed = list.actions[at];
    if (!is_copy_action(needed) || needed.pass.kind != PassKind::kOffload || released[at]) continue;
    released[at] = true;
    walk.offload(needed.pass);
    any = true;
  }
  return any;
}

bool waits_for_copy_back(const RankProgram& list, std::size_t k) {
  const auto dependencies = list.dependencies_of(k);
  return std::any_of(dependencies.begin(), dependencies.end(), [&](std::int32_t d) {
    const Action& needed = list.actions[static_cast<std::size_t>(d)];
    return is_copy_action(needed) && needed.pass.kind == PassKind::kReload;
  });
}

void follow_memory(const Program& program, const CostModel& cost, const LongestPath& path,
                   const SimulateOptions& options, Simulation& result) {
  if (options.record_memory) result.curve.ranks.resize(program.ranks.size());
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    MemoryWalk walk(program, *options.memory, static_cast<int>(rank));
    const auto sample = [&](std::int64_t time) {
      if (options.record_memory) result.curve.ranks[rank].push_back({time, walk.bytes()});
    };
    sample(0);
    const std::vector<Action>& actions = program.ranks[rank].actions;
    PassTimes times(program, cost, rank);
    std::vector<bool> released(actions.size(), false);
    std::int64_t now = 0;  // end of the last compute pass: a U counts from there on
    std::int64_t bytes_away = 0;
    std::int64_t peak_away = 0;
    const auto movable = [&](const Pass& pass) {
      return options.memory->stages[static_cast<std::size_t>(pass.stage)].movable;
    };
    for (std::size_t k = 0; k < actions.size(); ++k) {
      if (actions[k].kind == ActionKind::kCollective && walk.post_collective(actions[k])) {
        sample(now);
      }
      if (actions[k].kind != ActionKind::kPass) continue;
      const Pass& pass = actions[k].pass;
      if (pass.kind == PassKind::kOffload) {  // frees where somebody waits for it
        bytes_away += movable(pass);
        peak_away = std::max(peak_away, bytes_away);
        continue;
      }
      const bool frees = free_copied(program.ranks[rank], k, released, walk);
      if (pass.kind == PassKind::kReload) {
        walk.reload(pass);
        sample(now);
        continue;
      }
      const std::int64_t end = path.end_of(rank, k);
      now = end;
      const std::int64_t begin = end - times.next(pass).length;
      if (frees) sample(begin);
      if (waits_for_copy_back(program.ranks[rank], k)) bytes_away -= movable(pass);
      walk.begin(pass);
      sample(begin);
      walk.end(pass);
      sample(end);
      if (walk.post(pass)) sample(end);
    }
    result.memory.push_back(walk.peaks());
    result.peak_bytes_away.push_back(peak_away);
  }
}

}  // namespace

Simulation simulate(const Program& program, const CostModel& cost, const SimulateOptions& options) {
  SLUICE_CHECK(!options.record_memory || options.memory != nullptr,
               "a memory curve needs a memory model");
  check_range(program, cost);
  LongestPath path(program, cost);
  path.run();

  Simulation result;
  std::vector<RankState> states;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const RankState& state = states.emplace_back(path.state(rank));
    result.busy.push_back(state.busy);
    result.own_span.push_back(state.first_begin == kUnknown ? 0
                                                            : state.last_end - state.first_begin);
    result.peak_saved.push_back(program.forward_only ? 0 : state.peak_saved);
    result.peak_until_input.push_back(program.forward_only ? 0 : state.peak_until_input);
    result.peak_away.push_back(state.peak_away);
  }
  result.bubble = report_bubble(states);
  if (options.record_timeline) result.timeline = draw_timeline(program, cost, path);
  if (options.memory != nullptr) follow_memory(program, cost, path, options, result);
  return result;
}

}  // namespace sluice
