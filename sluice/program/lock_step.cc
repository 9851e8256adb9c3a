#include "sluice/program/lock_step.h"

#include <algorithm>
#include <array>

namespace sluice {
namespace {

class Walk {
 public:
  explicit Walk(const Program& program)
      : program_(program),
        cursor_(program.ranks.size(), 0),
        of_lane_(program.ranks.size()),
        collectives_(program.ranks.size()) {
    for (const RankProgram& rank : program.ranks) {
      slots_.emplace_back(rank.actions.size(), kNeverRuns);
    }
    for (auto& lanes : of_lane_) lanes.fill(-1);
  }

  std::vector<std::vector<std::int32_t>> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t rank = 0; rank < cursor_.size(); ++rank) moved |= advance(rank);
    }
    return std::move(slots_);
  }

 private:
  bool advance(std::size_t rank) {
    const std::size_t before = cursor_[rank];
    const std::size_t end = program_.ranks[rank].actions.size();
    while (cursor_[rank] < end && step(rank, cursor_[rank])) ++cursor_[rank];
    return cursor_[rank] != before;
  }

  bool step(std::size_t rank, std::size_t at) {
    const RankProgram& list = program_.ranks[rank];
    const Action& action = list.actions[at];
    if (action.kind == ActionKind::kReceive) return true;  // posted; its consumer asks for it
    std::int32_t& lane = of_lane_[rank][static_cast<std::size_t>(action.lane)];
    // Nothing is issued before the passes ahead of it in the list have run.
    std::int32_t slot = std::max(lane, of_lane_[rank][static_cast<std::size_t>(Lane::kCompute)]);
    for (const std::int32_t dependency : list.dependencies_of(at)) {
      const std::int32_t needed = slot_of(rank, static_cast<std::size_t>(dependency));
      if (needed == kNeverRuns) return false;
      slot = std::max(slot, needed);
    }
    if (action.kind == ActionKind::kCollective) {
      join(rank, at, slot);
      return true;  // posted; what needs it waits until all ranks have come to it
    }
    if (action.kind == ActionKind::kPass) slot = slot_after(slot, action.pass.kind);
    slots_[rank][at] = lane = slot;
    return true;
  }

  // The k-th collective of every rank is the same one: over in the last slot that any comes in, and
  // after the one before.
  void join(std::size_t rank, std::size_t at, std::int32_t slot) {
    const std::size_t ordinal = collectives_[rank].size();
    collectives_[rank].push_back(at);
    if (joined_.size() <= ordinal) joined_.resize(ordinal + 1);
    joined_[ordinal].slot = std::max(joined_[ordinal].slot, slot);
    if (++joined_[ordinal].num_ranks < cursor_.size()) return;
    if (ordinal > 0)
      joined_[ordinal].slot = std::max(joined_[ordinal].slot, joined_[ordinal - 1].slot);
    for (std::size_t other = 0; other < cursor_.size(); ++other) {
      slots_[other][collectives_[other][ordinal]] = joined_[ordinal].slot;
    }
  }

  // A message is there in the slot in which it was sent.
  std::int32_t slot_of(std::size_t rank, std::size_t at) const {
    const Action& action = program_.ranks[rank].actions[at];
    if (action.kind != ActionKind::kReceive) return slots_[rank][at];
    return slots_[static_cast<std::size_t>(action.peer)]
                 [static_cast<std::size_t>(action.peer_action)];
  }

  static std::int32_t slot_after(std::int32_t slot, PassKind kind) {
    const bool forward = kind == PassKind::kForward;
    if (!runs_layers(kind)) return slot;
    const std::int32_t next = slot + 1;
    return next + ((next % 2 == 0) == forward ? 0 : 1);
  }

  const Program& program_;
  std::vector<std::size_t> cursor_;
  std::vector<std::array<std::int32_t, kNumLanes>> of_lane_;  // the last slot of each lane
  std::vector<std::vector<std::int32_t>> slots_;

  struct Joined {
    std::size_t num_ranks = 0;
    std::int32_t slot = -1;
  };
  std::vector<std::vector<std::size_t>> collectives_;  // per rank: those it has come to
  std::vector<Joined> joined_;                         // per collective
};

}  // namespace

std::vector<std::vector<std::int32_t>> lock_step_slots(const Program& program) {
  return Walk(program).run();
}

}  // namespace sluice
