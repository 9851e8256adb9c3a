#include "sluice/program/verify_offload.h"

#include <algorithm>
#include <cstddef>

#include "sluice/program/pass_grid.h"
#include "sluice/program/verify_impl.h"

namespace sluice {
namespace {

// Where the actions of one (stage, microbatch, slice) stand on its rank.
struct Places {
  std::int32_t forward = kNoAction;
  std::int32_t out = kNoAction;
  std::int32_t in = kNoAction;
  std::int32_t backward = kNoAction;
  std::int32_t weight = kNoAction;
};

class OffloadCheck : ProgramCheck {
 public:
  OffloadCheck(const Program& program, std::vector<Problem>& problems)
      : ProgramCheck(program, problems),
        grid_{program.num_stages(), program.num_microbatches, program.num_slices},
        places_(grid_.size()) {}

  void run() {
    for (int rank = 0; rank < program_.num_ranks(); ++rank) read(rank);
    for (std::size_t at = 0; at < places_.size(); ++at) {
      const Places& places = places_[at];
      if (places.out == kNoAction && places.in == kNoAction) continue;
      check_trip(grid_.pass_at(at, PassKind::kForward), places);
    }
  }

 private:
  void read(int rank) {
    for (std::size_t k = 0; k < actions(rank).size(); ++k) {
      const Action& action = actions(rank)[k];
      if (action.kind != ActionKind::kPass || !grid_.contains(action.pass)) {
        if (is_copy_action(action)) add(rank, k, "{} lies outside the program", text(action.pass));
        continue;
      }
      const Pass& pass = action.pass;
      if (is_copy_action(action)) check_place(rank, k);
      if (program_.placement.rank_of(pass.stage) != rank) continue;
      Places& places = places_[grid_.index(pass)];
      const auto position = static_cast<std::int32_t>(k);
      switch (pass.kind) {
        case PassKind::kForward:
          places.forward = position;
          break;
        case PassKind::kBackward:
        case PassKind::kBackwardInput:
          places.backward = position;
          break;
        case PassKind::kBackwardWeight:
          places.weight = position;
          break;
        case PassKind::kOffload:
          place(rank, k, places.out);
          break;
        case PassKind::kReload:
          place(rank, k, places.in);
          break;
        default:
          break;
      }
    }
  }

  void place(int rank, std::size_t k, std::int32_t& slot) {
    if (slot != kNoAction) add(rank, k, "{} runs twice", text(actions(rank)[k].pass));
    slot = static_cast<std::int32_t>(k);
  }

  void check_place(int rank, std::size_t k) {
    const Action& action = actions(rank)[k];
    const Lane lane = action.pass.kind == PassKind::kOffload ? Lane::kCopyOut : Lane::kCopyIn;
    if (action.lane != lane) {
      add(rank, k, "{} is on lane {} instead of {}", text(action.pass), to_string(action.lane),
          to_string(lane));
    }
    if (const int home = program_.placement.rank_of(action.pass.stage); home != rank) {
      add(rank, k, "{} stands on rank {}, but stage {} is on rank {}", text(action.pass), rank,
          action.pass.stage, home);
    }
    for (const std::int32_t d : program_.ranks[static_cast<std::size_t>(rank)].dependencies_of(k)) {
      const Action& needed = actions(rank)[static_cast<std::size_t>(d)];
      if (needed.kind != ActionKind::kPass) {
        add(rank, k, "{} depends on \"{}\": copies may wait for passes only", text(action.pass),
            text(needed));
      }
    }
  }

  void check_trip(const Pass& forward, const Places& places) {
    const int rank = program_.placement.rank_of(forward.stage);
    const Pass out = of_kind(forward, PassKind::kOffload);
    const Pass in = of_kind(forward, PassKind::kReload);
    if (places.out == kNoAction) {
      return add(rank, position(places.in), "{} brings back what nobody copied out: {} is missing",
                 text(in), text(out));
    }
    if (places.in == kNoAction) {
      return add(rank, position(places.out), "{} copies out what never comes back: {} is missing",
                 text(out), text(in));
    }
    if (!waits(rank, places.out, places.forward)) {
      add(rank, position(places.out), "{} does not wait for {}, whose activations it copies",
          text(out), text(forward));
    }
    if (!waits(rank, places.in, places.out)) {
      add(rank, position(places.in),
          "{} does not wait for its own {}: it may read what is not there yet", text(in),
          text(out));
    }
    if (places.backward == kNoAction) return;  // reported already
    const Pass& backward = actions(rank)[position(places.backward)].pass;
    if (!waits(rank, places.backward, places.in)) {
      add(rank, position(places.backward),
          "{} does not wait for {}: its activations may still be away", text(backward), text(in));
    }
    if (places.weight != kNoAction && places.weight < places.in) {
      add(rank, position(places.weight), "{} stands between {} and {}: its activations are away",
          text(actions(rank)[position(places.weight)].pass), text(out), text(in));
    }
  }

  // Whether `action` names `needed` among its dependencies.
  bool waits(int rank, std::int32_t action, std::int32_t needed) const {
    const auto dependencies =
        program_.ranks[static_cast<std::size_t>(rank)].dependencies_of(position(action));
    return std::find(dependencies.begin(), dependencies.end(), needed) != dependencies.end();
  }

  static Pass of_kind(Pass pass, PassKind kind) {
    pass.kind = kind;
    return pass;
  }

  const PassGrid grid_;
  std::vector<Places> places_;
};

}  // namespace

void check_offload(const Program& program, std::vector<Problem>& problems) {
  const bool any =
      std::any_of(program.ranks.begin(), program.ranks.end(), [](const RankProgram& rank) {
        return std::any_of(rank.actions.begin(), rank.actions.end(), is_copy_action);
      });
  if (any) OffloadCheck(program, problems).run();
}

std::vector<std::int64_t> peak_bytes_away(const Program& program,
                                          const std::vector<std::int64_t>& stage_bytes) {
  std::vector<std::int64_t> peaks;
  for (const RankProgram& rank : program.ranks) {
    std::int64_t away = 0;
    std::int64_t peak = 0;
    for (std::size_t k = 0; k < rank.actions.size(); ++k) {
      const Action& action = rank.actions[k];
      if (is_copy_action(action)) {
        if (action.pass.kind != PassKind::kOffload) continue;
        away += stage_bytes[static_cast<std::size_t>(action.pass.stage)];
        peak = std::max(peak, away);
        continue;
      }
      for (const std::int32_t d : rank.dependencies_of(k)) {
        const Action& needed = rank.actions[static_cast<std::size_t>(d)];
        if (is_copy_action(needed) && needed.pass.kind == PassKind::kReload) {
          away -= stage_bytes[static_cast<std::size_t>(needed.pass.stage)];
        }
      }
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace sluice
