#include "sluice/trace/unit_time.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/program/lower.h"

namespace sluice {
namespace {

constexpr std::int64_t kNotYet = -1;

std::int64_t units(const Action& action) {
  if (action.kind != ActionKind::kPass || action.lane != Lane::kCompute) return 0;
  return action.pass.kind == PassKind::kBackward ? 2 : 1;
}

/// Ends of the actions of all ranks, found by walking every rank as far as it can go, over and
/// over.
class Walk {
 public:
  explicit Walk(const Program& program) : program_(program) {
    for (const RankProgram& rank : program.ranks) {
      ends_.emplace_back(rank.actions.size(), kNotYet);
    }
    position_.resize(program.ranks.size(), 0);
    busy_until_.resize(program.ranks.size(), 0);
    collectives_.resize(program.ranks.size());
  }

  Timeline run() {
    timeline_.name = program_.name;
    timeline_.num_slices = program_.num_slices;
    timeline_.num_stages = program_.num_stages();
    timeline_.ranks.resize(program_.ranks.size());
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) moved |= advance(rank);
    }
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      SLUICE_CHECK(position_[rank] == ends_[rank].size(), "rank {} stands at {}", rank,
                   to_string(program_.ranks[rank].actions[position_[rank]]));
    }
    return std::move(timeline_);
  }

 private:
  bool advance(std::size_t rank) {
    const std::size_t before = position_[rank];
    while (position_[rank] < ends_[rank].size() && step(rank)) ++position_[rank];
    return position_[rank] != before;
  }

  bool step(std::size_t rank) {
    const RankProgram& work = program_.ranks[rank];
    const std::size_t index = position_[rank];
    const Action& action = work.actions[index];
    if (action.kind == ActionKind::kReceive) return true;  // posted; who needs it waits for it
    std::int64_t begin = action.lane == Lane::kCompute ? busy_until_[rank] : 0;
    for (const std::int32_t dependency : work.dependencies_of(index)) {
      const std::int64_t end = end_of(rank, static_cast<std::size_t>(dependency));
      if (end == kNotYet) return false;
      begin = std::max(begin, end);
    }
    if (action.kind == ActionKind::kCollective) {
      join(rank, index, begin);
      return true;
    }
    const std::int64_t end = begin + units(action);
    ends_[rank][index] = end;
    if (action.lane == Lane::kCompute) {
      busy_until_[rank] = end;
      timeline_.ranks[rank].push_back({action.kind, action.lane, -1, action.pass, begin, end});
    }
    return true;
  }

  // A collective takes no time: it ends when the last rank has come to it.
  void join(std::size_t rank, std::size_t index, std::int64_t begin) {
    const std::size_t ordinal = collectives_[rank].size();
    collectives_[rank].push_back(index);
    if (joined_.size() <= ordinal) joined_.resize(ordinal + 1);
    joined_[ordinal].second = std::max(joined_[ordinal].second, begin);
    if (++joined_[ordinal].first < ends_.size()) return;
    for (std::size_t other = 0; other < ends_.size(); ++other) {
      ends_[other][collectives_[other][ordinal]] = joined_[ordinal].second;
    }
  }

  // A message takes no time: it has arrived when its send has ended.
  std::int64_t end_of(std::size_t rank, std::size_t index) const {
    const Action& action = program_.ranks[rank].actions[index];
    if (action.kind != ActionKind::kReceive) return ends_[rank][index];
    return ends_[static_cast<std::size_t>(action.peer)]
                [static_cast<std::size_t>(action.peer_action)];
  }

  const Program& program_;
  std::vector<std::vector<std::int64_t>> ends_;
  std::vector<std::size_t> position_;
  std::vector<std::int64_t> busy_until_;
  std::vector<std::vector<std::size_t>> collectives_;         // per rank: those it has come to
  std::vector<std::pair<std::size_t, std::int64_t>> joined_;  // ranks that came, last of them
  Timeline timeline_;
};

}  // namespace

Timeline unit_time(const Schedule& schedule) { return Walk(lower(schedule)).run(); }

}  // namespace sluice
