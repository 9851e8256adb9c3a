// The walk that proves that passes which exchange attention can run at the same time.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "sluice/program/verify_exchange.h"

namespace sluice {
namespace {

struct Walker {
  std::size_t cursor = 0;
  std::size_t next_exchange = 0;
  std::int32_t waits_for = -1;           // a receive or a collective of its own
  std::vector<std::size_t> collectives;  // those it has come to
  bool in_slot = false;  // has come to the pass at next_exchange and waits for the others
  std::vector<std::uint8_t> done;
};

class Walk {
 public:
  explicit Walk(const Program& program) : program_(program), walkers_(program.ranks.size()) {
    for (std::size_t rank = 0; rank < walkers_.size(); ++rank) {
      walkers_[rank].done.assign(program.ranks[rank].actions.size(), 0);
      for (const PassExchange& exchange : program.exchange.ranks[rank]) {
        slots_[exchange.slot].members.push_back(rank);
      }
    }
  }

  void run() {
    for (std::size_t rank = walkers_.size(); rank-- > 0;) ready_.push_back(rank);
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
  }

  void report(std::vector<Problem>& problems) const {
    for (std::size_t rank = 0; rank < walkers_.size(); ++rank) {
      if (walkers_[rank].in_slot) {
        problems.push_back(
            {static_cast<int>(rank), static_cast<int>(walkers_[rank].cursor), describe(rank)});
      }
    }
  }

 private:
  struct Slot {
    std::vector<std::size_t> members;  // ranks; one that stands twice makes the slot impossible
    std::size_t num_come = 0;
  };

  const PassExchange* next_exchange(std::size_t rank) const {
    const std::vector<PassExchange>& list = program_.exchange.ranks[rank];
    const std::size_t next = walkers_[rank].next_exchange;
    return next == list.size() ? nullptr : &list[next];
  }

  void advance(std::size_t rank) {
    Walker& walker = walkers_[rank];
    if (walker.in_slot) return;
    const RankProgram& list = program_.ranks[rank];
    walker.waits_for = -1;
    for (; walker.cursor < list.actions.size(); ++walker.cursor) {
      const Action& action = list.actions[walker.cursor];
      if (action.kind == ActionKind::kReceive) continue;  // over when it has been sent
      for (const std::int32_t dependency : list.dependencies_of(walker.cursor)) {
        if (is_over(rank, static_cast<std::size_t>(dependency))) continue;
        walker.waits_for = dependency;
        return;
      }
      if (action.kind == ActionKind::kCollective) {
        post_collective(rank);
        continue;
      }
      const PassExchange* exchange = next_exchange(rank);
      if (exchange != nullptr && action.kind == ActionKind::kPass &&
          action.pass == exchange->pass) {
        return enter(rank, exchange->slot);
      }
      finish(rank);
    }
  }

  bool is_over(std::size_t rank, std::size_t at) const {
    const Action& action = program_.ranks[rank].actions[at];
    if (action.kind != ActionKind::kReceive) return walkers_[rank].done[at] != 0;
    const Walker& sender = walkers_[static_cast<std::size_t>(action.peer)];
    return sender.done[static_cast<std::size_t>(action.peer_action)] != 0;
  }

  void finish(std::size_t rank) {
    Walker& walker = walkers_[rank];
    walker.done[walker.cursor] = 1;
    const Action& action = program_.ranks[rank].actions[walker.cursor];
    if (action.kind != ActionKind::kSend) return;
    const auto peer = static_cast<std::size_t>(action.peer);
    if (walkers_[peer].waits_for == action.peer_action) ready_.push_back(peer);
  }

  // The k-th collective of every rank is the same one. It is over once all have come to it.
  void post_collective(std::size_t rank) {
    Walker& mine = walkers_[rank];
    const std::size_t ordinal = mine.collectives.size();
    mine.collectives.push_back(mine.cursor);
    if (num_come_.size() <= ordinal) num_come_.resize(ordinal + 1);
    if (++num_come_[ordinal] < walkers_.size()) return;
    for (std::size_t other = 0; other < walkers_.size(); ++other) {
      Walker& walker = walkers_[other];
      const std::size_t at = walker.collectives[ordinal];
      walker.done[at] = 1;
      if (other != rank && walker.waits_for == static_cast<std::int32_t>(at)) {
        ready_.push_back(other);
      }
    }
  }

  // The last one to come lets all of the slot go on.
  void enter(std::size_t rank, std::int32_t slot_number) {
    walkers_[rank].in_slot = true;
    Slot& slot = slots_[slot_number];
    if (++slot.num_come < slot.members.size()) return;
    for (const std::size_t member : slot.members) {
      Walker& walker = walkers_[member];
      walker.in_slot = false;
      finish(member);
      ++walker.next_exchange;
      ++walker.cursor;
      ready_.push_back(member);
    }
  }

  std::string describe(std::size_t rank) const {
    const PassExchange& mine = *next_exchange(rank);
    const std::vector<std::size_t>& members = slots_.at(mine.slot).members;
    std::string text = fmt::format("slot {} never starts: {} of rank {} waits for", mine.slot,
                                   to_string(mine.pass, true), rank);
    const char* separator = " ";
    for (const std::size_t member : members) {
      const Walker& walker = walkers_[member];
      const PassExchange* theirs = next_exchange(member);
      const bool has_come = walker.in_slot && theirs->slot == mine.slot;
      if (has_come && std::count(members.begin(), members.end(), member) == 1) continue;
      if (has_come && member == rank) {
        text += fmt::format("{}another pass of its own rank", separator);
        separator = ", ";
        continue;
      }
      const std::vector<Action>& actions = program_.ranks[member].actions;
      text += fmt::format("{}rank {}, which stands at {}", separator, member,
                          walker.cursor < actions.size() ? to_string(actions[walker.cursor], true)
                                                         : std::string("its end"));
      separator = ", ";
    }
    return text + ": a pass of a slot depends on another one of it";
  }

  const Program& program_;
  std::vector<Walker> walkers_;
  std::unordered_map<std::int32_t, Slot> slots_;
  std::vector<std::size_t> ready_;
  std::vector<std::size_t> num_come_;  // per collective, in the order of all ranks
};

}  // namespace

void check_exchange_progress(const Program& program, std::vector<Problem>& problems) {
  if (program.exchange.empty()) return;
  Walk walk(program);
  walk.run();
  walk.report(problems);
}

}  // namespace sluice
