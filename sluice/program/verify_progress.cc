// The walk of verify(): does the program end when no send is buffered?
#include <fmt/format.h>

#include <algorithm>

#include "sluice/program/verify_impl.h"

namespace sluice {
namespace {

enum class State : std::uint8_t { kAhead, kPosted, kDone };

// One rank's issuing thread.
struct Walker {
  std::size_t cursor = 0;
  std::int32_t waits_for = -1;  // dependency that the pass at the cursor waits for
  std::vector<State> states;
  std::vector<std::int32_t> collectives;  // posted so far
};

class Walk {
 public:
  Walk(const Program& program, const Matched& matched)
      : program_(program), matched_(matched), walkers_(program.ranks.size()) {
    for (std::size_t r = 0; r < walkers_.size(); ++r) {
      walkers_[r].states.assign(program.ranks[r].actions.size(), State::kAhead);
    }
  }

  void run() {
    for (int rank = program_.num_ranks() - 1; rank >= 0; --rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
  }

  void report(std::vector<Problem>& problems) const {
    for (int rank = 0; rank < program_.num_ranks(); ++rank) {
      const Walker& walker = walkers_[static_cast<std::size_t>(rank)];
      const RankProgram& list = program_.ranks[static_cast<std::size_t>(rank)];
      if (walker.cursor < list.actions.size()) {
        problems.push_back({rank, static_cast<int>(walker.cursor), describe_stuck(rank)});
      }
      report_unfinished(rank, problems);
    }
  }

 private:
  // Walks the list until a pass has to wait. Posting a message never waits: check_contents() has
  // seen to it that messages depend on passes alone, and those are done when the walk gets there.
  void advance(int rank) {
    Walker& walker = walkers_[static_cast<std::size_t>(rank)];
    const RankProgram& list = program_.ranks[static_cast<std::size_t>(rank)];
    walker.waits_for = -1;
    for (; walker.cursor < list.actions.size(); ++walker.cursor) {
      const Action& action = list.actions[walker.cursor];
      if (action.kind == ActionKind::kSend || action.kind == ActionKind::kReceive) {
        post(rank, walker.cursor);
        continue;
      }
      if (action.kind == ActionKind::kCollective) {
        post_collective(rank, walker.cursor);
        continue;
      }
      for (const std::int32_t dependency : list.dependencies_of(walker.cursor)) {
        if (walker.states[static_cast<std::size_t>(dependency)] != State::kDone) {
          walker.waits_for = dependency;
          return prefetch(list, walker);
        }
      }
      walker.states[walker.cursor] = State::kDone;
    }
  }

  // Many ranks take turns, each with its own place in memory: fetch what the next turn reads.
  static void prefetch(const RankProgram& list, const Walker& walker) {
    const auto* actions = reinterpret_cast<const char*>(list.actions.data() + walker.cursor);
    for (int line = 1; line < 6; ++line) __builtin_prefetch(actions + 64 * line);
    __builtin_prefetch(list.dependency_begin.data() + walker.cursor + 16);
    __builtin_prefetch(list.dependencies.data() + list.dependency_begin[walker.cursor] + 16);
  }

  // A message is over for both ends once both have posted it. Channels deliver in order: that both
  // ends post in one order is point 2, so the earlier messages of the channel are over by then.
  void post(int rank, std::size_t at) {
    const Action& action = program_.ranks[static_cast<std::size_t>(rank)].actions[at];
    State& mine = walkers_[static_cast<std::size_t>(rank)].states[at];
    mine = State::kPosted;
    if (matched_[static_cast<std::size_t>(rank)][at] == 0) return;
    Walker& peer = walkers_[static_cast<std::size_t>(action.peer)];
    State& theirs = peer.states[static_cast<std::size_t>(action.peer_action)];
    if (theirs != State::kPosted) return;
    mine = theirs = State::kDone;
    if (peer.waits_for == action.peer_action) ready_.push_back(action.peer);
  }

  // The k-th collective of every rank is the same one (point 5). It is over once all have posted
  // it, and then so are all before it.
  void post_collective(int rank, std::size_t at) {
    Walker& mine = walkers_[static_cast<std::size_t>(rank)];
    mine.states[at] = State::kPosted;
    mine.collectives.push_back(static_cast<std::int32_t>(at));
    const std::size_t ordinal = mine.collectives.size() - 1;
    if (num_posted_.size() <= ordinal) num_posted_.resize(ordinal + 1);
    if (++num_posted_[ordinal] < program_.num_ranks()) return;
    for (int other = 0; other < program_.num_ranks(); ++other) {
      Walker& walker = walkers_[static_cast<std::size_t>(other)];
      const std::int32_t action = walker.collectives[ordinal];
      walker.states[static_cast<std::size_t>(action)] = State::kDone;
      if (other != rank && walker.waits_for == action) ready_.push_back(other);
    }
  }

  std::string describe_stuck(int rank) const {
    const Walker& walker = walkers_[static_cast<std::size_t>(rank)];
    const std::vector<Action>& actions = program_.ranks[static_cast<std::size_t>(rank)].actions;
    const Action& wanted = actions[static_cast<std::size_t>(walker.waits_for)];
    return fmt::format("deadlock: rank {} stands at {}, which waits for {}; {}", rank,
                       text(actions[walker.cursor]), text(wanted),
                       why_open(rank, static_cast<std::size_t>(walker.waits_for)));
  }

  // Why a posted message of `rank` is not over.
  std::string why_open(int rank, std::size_t at) const {
    const Action& action = program_.ranks[static_cast<std::size_t>(rank)].actions[at];
    if (action.kind == ActionKind::kCollective) return why_collective_open(rank, at);
    if (matched_[static_cast<std::size_t>(rank)][at] == 0) {
      return "no action of the peer answers it";
    }
    const Walker& peer = walkers_[static_cast<std::size_t>(action.peer)];
    const std::vector<Action>& others =
        program_.ranks[static_cast<std::size_t>(action.peer)].actions;
    const Action& answer = others[static_cast<std::size_t>(action.peer_action)];
    return fmt::format("rank {} comes to \"{}\" only after {}", action.peer, text(answer),
                       text(others[peer.cursor]));
  }

  // Which rank has not come to a collective.
  std::string why_collective_open(int rank, std::size_t at) const {
    const std::vector<std::int32_t>& posted = walkers_[static_cast<std::size_t>(rank)].collectives;
    const auto ordinal = static_cast<std::size_t>(
        std::find(posted.begin(), posted.end(), static_cast<std::int32_t>(at)) - posted.begin());
    for (int other = 0; other < program_.num_ranks(); ++other) {
      const Walker& walker = walkers_[static_cast<std::size_t>(other)];
      if (walker.collectives.size() > ordinal) continue;
      return fmt::format(
          "rank {} comes to it only after {}", other,
          text(program_.ranks[static_cast<std::size_t>(other)].actions[walker.cursor]));
    }
    return "all ranks have come to it";
  }

  // A rank can reach its end and leave messages that nobody answers.
  void report_unfinished(int rank, std::vector<Problem>& problems) const {
    const Walker& walker = walkers_[static_cast<std::size_t>(rank)];
    const RankProgram& list = program_.ranks[static_cast<std::size_t>(rank)];
    if (walker.cursor < list.actions.size()) return;
    for (std::size_t k = 0; k < walker.states.size(); ++k) {
      if (walker.states[k] == State::kDone) continue;
      problems.push_back({rank, static_cast<int>(k),
                          fmt::format("{} of rank {} is never over: {}", text(list.actions[k]),
                                      rank, why_open(rank, k))});
    }
  }

  std::string text(const Action& action) const {
    return to_string(action, program_.num_slices > 1);
  }

  const Program& program_;
  const Matched& matched_;
  std::vector<Walker> walkers_;
  std::vector<int> ready_;
  std::vector<int> num_posted_;  // per collective, in the order of all ranks
};

}  // namespace

void check_progress(const Program& program, const Matched& matched,
                    std::vector<Problem>& problems) {
  Walk walk(program, matched);
  walk.run();
  walk.report(problems);
}

}  // namespace sluice
