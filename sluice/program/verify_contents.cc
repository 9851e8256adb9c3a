// What verify() reads off the lists: messages, saved activations, gradients.
#include <fmt/format.h>

#include <algorithm>

#include "sluice/common/errors.h"
#include "sluice/program/pass_grid.h"
#include "sluice/program/verify_impl.h"
#include "sluice/program/verify_offload.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

const char* input_name(int direction) { return direction == 0 ? "activations" : "gradient"; }

class Contents : ProgramCheck {
 public:
  Contents(const Program& program, std::vector<Problem>& problems)
      : ProgramCheck(program, problems),
        grid_{program.num_stages(), program.num_microbatches, program.num_slices},
        places_(grid_.size()),
        last_on_channel_(2 * program.ranks.size()) {
    for (const RankProgram& rank : program.ranks) matched_.emplace_back(rank.actions.size(), 0);
  }

  Matched run() {
    for (int rank = 0; rank < program_.num_ranks(); ++rank) read_rank(rank);
    for (int rank = 0; rank < program_.num_ranks(); ++rank) report_unmatched(rank);
    Pass forward;  // counted along instead of divided out of the index
    std::size_t at = 0;
    for (forward.stage = 0; forward.stage < grid_.num_stages; ++forward.stage) {
      for (forward.microbatch = 0; forward.microbatch < grid_.num_microbatches;
           ++forward.microbatch) {
        for (forward.slice = 0; forward.slice < grid_.num_slices; ++forward.slice) {
          check_triple(at++, forward);
        }
      }
    }
    return std::move(matched_);
  }

 private:
  // --- one reading of every list ---

  void read_rank(int rank) {
    const RankProgram& list = program_.ranks[static_cast<std::size_t>(rank)];
    std::fill(last_on_channel_.begin(), last_on_channel_.end(), kNoAction);
    std::int32_t optimizer = kNoAction;
    for (std::size_t k = 0; k < list.actions.size(); ++k) {
      const Action& action = list.actions[k];
      const bool is_message =
          action.kind == ActionKind::kSend || action.kind == ActionKind::kReceive;
      if (!is_message) matched_[position(rank)][k] = 1;
      switch (action.kind) {
        case ActionKind::kPass:
          read_pass(rank, k, optimizer);
          break;
        case ActionKind::kSend:
        case ActionKind::kReceive:
          read_message(rank, k);
          break;
        case ActionKind::kOptimizer:
          if (program_.forward_only) add(rank, k, "an optimizer in a program of forwards alone");
          if (optimizer != kNoAction) add(rank, k, "rank {} runs the optimizer twice", rank);
          if (action.lane != Lane::kCompute) {
            add(rank, k, "the optimizer is on lane {}", to_string(action.lane));
          }
          optimizer = static_cast<std::int32_t>(k);
          break;
        case ActionKind::kCollective:
          break;  // check_vocabulary()
        default:
          add(rank, k, "action {} of rank {} is of no known kind", k, rank);
      }
    }
    if (optimizer == kNoAction && !program_.forward_only) {
      problems_.push_back({rank, -1, fmt::format("rank {} never runs the optimizer", rank)});
    }
  }

  void read_pass(int rank, std::size_t k, std::int32_t optimizer) {
    const Action& action = actions(rank)[k];
    const Pass& pass = action.pass;
    if (is_copy(pass.kind)) return;         // check_offload()
    if (!is_stage_pass(pass.kind)) return;  // check_vocabulary()
    if (!is_known(pass.kind)) {
      return add(rank, k, "{} is a pass of no known kind", text(pass));
    }
    if (!check_place(rank, k, pass.stage)) return;
    if (action.lane != Lane::kCompute) {
      add(rank, k, "{} is on lane {}, passes run on compute", text(pass), to_string(action.lane));
    }
    PassPlaces& places = places_[grid_.index(pass)];
    if (pass.kind == PassKind::kForward) {
      if (places.forward != kNoAction) return add(rank, k, "{} runs twice", text(pass));
      places.forward = static_cast<std::int32_t>(k);
      return check_input(rank, k, 0, pass.stage - 1);
    }
    if (program_.forward_only) {
      return add(rank, k, "{} in a program of forwards alone", text(pass));
    }
    if (optimizer != kNoAction && pass.kind != PassKind::kBackwardInput) {
      add(rank, k, "{} comes after the optimizer: its gradient is lost", text(pass));
    }
    if (pass.kind == PassKind::kBackwardWeight) {
      if (places.weight != kNoAction) return add(rank, k, "{} runs twice", text(pass));
      places.weight = static_cast<std::int32_t>(k);
      return;
    }
    if (places.backward != kNoAction) {
      return add(rank, k, "{} runs after {}: the saved activations of {} are used twice",
                 text(pass), text(actions(rank)[position(places.backward)].pass),
                 text(of_kind(pass, PassKind::kForward)));
    }
    places.backward = static_cast<std::int32_t>(k);
    places.backward_kind = pass.kind;
    check_input(rank, k, 1, pass.stage + 1);
  }

  // What a pass takes from another rank must be among its dependencies; what it takes from its own
  // rank is ordered by the compute lane (check_triple).
  void check_input(int rank, std::size_t k, int direction, int producer_stage) {
    if (producer_stage < 0 || producer_stage >= grid_.num_stages) return;
    if (program_.placement.rank_of(producer_stage) == rank) return;
    const Pass& pass = actions(rank)[k].pass;
    for (const std::int32_t d : program_.ranks[position(rank)].dependencies_of(k)) {
      const Action& dependency = actions(rank)[position(d)];
      if (dependency.kind == ActionKind::kReceive &&
          direction_of(dependency.pass.kind) == direction &&
          dependency.pass.stage == producer_stage &&
          dependency.pass.microbatch == pass.microbatch && dependency.pass.slice == pass.slice) {
        return;
      }
    }
    add(rank, k, "{} does not wait for its {} from stage {} on rank {}", text(pass),
        input_name(direction), producer_stage, program_.placement.rank_of(producer_stage));
  }

  void read_message(int rank, std::size_t k) {
    const Action& action = actions(rank)[k];
    const Pass& pass = action.pass;
    const bool sends = action.kind == ActionKind::kSend;
    const int direction = direction_of(pass.kind);
    if (!is_known(pass.kind) || pass.kind == PassKind::kBackwardWeight) {
      return add(rank, k, "\"{}\": {} makes nothing that travels", text(action), text(pass));
    }
    const int consumer_stage = direction == 0 ? pass.stage + 1 : pass.stage - 1;
    const int here = sends ? pass.stage : consumer_stage;
    const int there = sends ? consumer_stage : pass.stage;
    if (consumer_stage < 0 || consumer_stage >= grid_.num_stages) {
      return add(rank, k, "\"{}\": no stage takes the {} of stage {}", text(action),
                 input_name(direction), pass.stage);
    }
    if (!check_place(rank, k, here)) return;
    if (const int home = program_.placement.rank_of(there); home != action.peer || home == rank) {
      return add(rank, k, "\"{}\": stage {} is on rank {}", text(action), there, home);
    }
    check_message_lane(rank, k);
    PassPlaces& places = places_[grid_.index(pass)];
    std::int32_t& slot = sends ? places.send[direction] : places.receive[direction];
    if (slot != kNoAction) return add(rank, k, "\"{}\" stands twice", text(action));
    slot = static_cast<std::int32_t>(k);
    check_message_dependencies(rank, k);
    if (!sends || !is_answered(rank, k)) return;
    matched_[position(rank)][k] = 1;
    matched_[position(action.peer)][position(action.peer_action)] = 1;
    check_channel_order(rank, k, direction);
  }

  // Whether the receive that the send at `k` names says the same of it.
  bool is_answered(int rank, std::size_t k) const {
    const Action& send = actions(rank)[k];
    const std::vector<Action>& others = actions(send.peer);
    if (send.peer_action < 0 || position(send.peer_action) >= others.size()) return false;
    const Action& receive = others[position(send.peer_action)];
    __builtin_prefetch(&receive + 24);  // near the answers to the next sends
    return receive.kind == ActionKind::kReceive && receive.peer == rank &&
           receive.peer_action == static_cast<std::int32_t>(k) && receive.pass == send.pass;
  }

  void report_unmatched(int rank) {
    const std::vector<std::uint8_t>& matched = matched_[position(rank)];
    for (std::size_t k = 0; k < matched.size(); ++k) {
      if (matched[k] == 0) add(rank, k, "{}", describe_mismatch(rank, k));
    }
  }

  void check_message_lane(int rank, std::size_t k) {
    const Action& action = actions(rank)[k];
    constexpr Lane kLanes[2][2] = {{Lane::kReceiveForward, Lane::kReceiveBackward},
                                   {Lane::kSendForward, Lane::kSendBackward}};
    const Lane lane =
        kLanes[action.kind == ActionKind::kSend ? 1 : 0][direction_of(action.pass.kind)];
    if (action.lane != lane) {
      add(rank, k, "\"{}\" is on lane {} instead of {}", text(action), to_string(action.lane),
          to_string(lane));
    }
  }

  // The issuing thread posts messages without waiting: all that a message depends on must be over
  // when the thread comes to it. A send must depend on the pass that makes what it sends, since its
  // lane does not wait for the compute lane.
  void check_message_dependencies(int rank, std::size_t k) {
    const Action& action = actions(rank)[k];
    bool waits_for_producer = false;
    for (const std::int32_t d : program_.ranks[position(rank)].dependencies_of(k)) {
      const Action& dependency = actions(rank)[position(d)];
      if (dependency.kind != ActionKind::kPass) {
        add(rank, k, "\"{}\" depends on \"{}\": messages may wait for passes only", text(action),
            text(dependency));
      }
      waits_for_producer |= dependency.kind == ActionKind::kPass && dependency.pass == action.pass;
    }
    if (action.kind == ActionKind::kSend && !waits_for_producer) {
      add(rank, k, "\"{}\" does not wait for {}", text(action), text(action.pass));
    }
  }

  std::string describe_mismatch(int rank, std::size_t k) const {
    const Action& action = actions(rank)[k];
    const char* answer = action.kind == ActionKind::kSend ? "receive" : "send";
    const bool is_rank = action.peer >= 0 && action.peer < program_.num_ranks();
    if (!is_rank || action.peer_action < 0 ||
        position(action.peer_action) >= actions(action.peer).size()) {
      return fmt::format("\"{}\" of rank {} has no {} on rank {}", text(action), rank, answer,
                         action.peer);
    }
    return fmt::format("\"{}\" of rank {} names as its {} action {} of rank {}, which is \"{}\"",
                       text(action), rank, answer, action.peer_action, action.peer,
                       text(actions(action.peer)[position(action.peer_action)]));
  }

  // Sends are read in order, so their receives must come in ascending order on the peer.
  void check_channel_order(int rank, std::size_t k, int direction) {
    const Action& action = actions(rank)[k];
    std::int32_t& last = last_on_channel_[2 * position(action.peer) + position(direction)];
    if (action.peer_action < last) {
      add(rank, k,
          "rank {} sends {} after {}, but rank {} receives them the other way round (a channel has "
          "one order)",
          rank, text(action.pass), text(actions(action.peer)[position(last)].pass), action.peer);
    }
    last = std::max(last, action.peer_action);
  }

  // --- one reading of every (stage, microbatch, slice) ---

  void check_triple(std::size_t at, const Pass& forward) {
    const PassPlaces& places = places_[at];
    const int rank = program_.placement.rank_of(forward.stage);
    if (places.forward == kNoAction) {
      problems_.push_back({rank, -1, fmt::format("{} is missing", text(forward))});
    }
    check_local_order(at, forward, rank);
    check_messages(at, forward, rank, 0);
    if (program_.forward_only) return;
    check_messages(at, forward, rank, 1);
    check_saved(at, forward, rank);
  }

  // Saved activations: made by F, used by B, or by I and then W, each once.
  void check_saved(std::size_t at, const Pass& forward, int rank) {
    const PassPlaces& places = places_[at];
    const Pass weight = of_kind(forward, PassKind::kBackwardWeight);
    if (places.backward == kNoAction) {
      problems_.push_back(
          {rank, places.forward,
           fmt::format("nothing frees what {} saved: {} (or I and W) is missing", text(forward),
                       text(of_kind(forward, PassKind::kBackward)))});
      if (places.weight != kNoAction) {
        add(rank, position(places.weight), "{} has no {} before it", text(weight),
            text(of_kind(forward, PassKind::kBackwardInput)));
      }
      return;
    }
    const Pass backward = of_kind(forward, places.backward_kind);
    if (places.backward_kind == PassKind::kBackward) {
      if (places.weight != kNoAction) {
        add(rank, position(places.weight),
            "{} follows {}: the saved activations of {} are used "
            "twice",
            text(weight), text(backward), text(forward));
      }
    } else if (places.weight == kNoAction) {
      add(rank, position(places.backward), "nothing frees what {} saved: {} is missing",
          text(backward), text(weight));
    } else if (places.weight < places.backward) {
      add(rank, position(places.weight), "{} comes before {}", text(weight), text(backward));
    }
    if (places.forward != kNoAction && places.backward < places.forward) {
      add(rank, position(places.backward), "{} comes before {}", text(backward), text(forward));
    }
  }

  // Inputs that are made on the same rank: neighbour stages, and the neighbour slices.
  void check_local_order(std::size_t at, const Pass& forward, int rank) {
    const PassPlaces& places = places_[at];
    const auto before = [&](std::int32_t action, std::int32_t input,
                            const char* why = ", whose result it needs") {
      if (action == kNoAction || input == kNoAction || input < action) return;
      add(rank, position(action), "{} comes before {}{}", text(actions(rank)[position(action)]),
          text(actions(rank)[position(input)]), why);
    };
    const int stage = forward.stage;
    if (stage > 0 && program_.placement.rank_of(stage - 1) == rank) {
      before(places.forward, places_[at - grid_.stage_stride()].forward);
    }
    if (stage + 1 < grid_.num_stages && program_.placement.rank_of(stage + 1) == rank) {
      before(places.backward, places_[at + grid_.stage_stride()].backward);
    }
    if (forward.slice > 0) {
      before(places.forward, places_[at - 1].forward, ": K/V of an older slice is not there yet");
    }
    // A backward uses up and frees its slice's K/V: all later slices have to have been backward.
    if (forward.slice + 1 < grid_.num_slices) {
      before(places.backward, places_[at + 1].backward,
             ": the gradient of its slice's K/V is not complete");
    }
  }

  // One send and one receive for an output that another rank takes.
  void check_messages(std::size_t at, const Pass& forward, int rank, int direction) {
    const PassPlaces& places = places_[at];
    const int consumer_stage = direction == 0 ? forward.stage + 1 : forward.stage - 1;
    if (consumer_stage < 0 || consumer_stage >= grid_.num_stages) return;
    const int peer = program_.placement.rank_of(consumer_stage);
    if (peer == rank) return;
    const std::int32_t producer = direction == 0 ? places.forward : places.backward;
    const Pass output = direction == 0 ? forward : of_kind(forward, places.backward_kind);
    const std::int32_t send = places.send[direction];
    const std::int32_t receive = places.receive[direction];
    if (send == kNoAction && (producer != kNoAction || receive != kNoAction)) {
      problems_.push_back(
          {rank, producer,
           fmt::format("rank {} never sends {} to rank {}", rank, text(output), peer)});
    }
    if (receive == kNoAction && (producer != kNoAction || send != kNoAction)) {
      problems_.push_back(
          {peer, -1,
           fmt::format("rank {} never receives {} from rank {}", peer, text(output), rank)});
    }
  }

  // --- words ---

  // Whether the action's pass exists at all and `stage`, where the action must run, is on `rank`.
  bool check_place(int rank, std::size_t k, int stage) {
    const Action& action = actions(rank)[k];
    if (!grid_.contains(action.pass)) {
      add(rank, k, "\"{}\" lies outside the {} stages, {} microbatches and {} slices", text(action),
          grid_.num_stages, grid_.num_microbatches, grid_.num_slices);
      return false;
    }
    if (const int home = program_.placement.rank_of(stage); home != rank) {
      add(rank, k, "\"{}\" stands on rank {}, but stage {} is on rank {}", text(action), rank,
          stage, home);
      return false;
    }
    return true;
  }

  static bool is_known(PassKind kind) {
    return runs_layers(kind) || kind == PassKind::kBackwardWeight;
  }
  static Pass of_kind(Pass pass, PassKind kind) {
    pass.kind = kind;
    return pass;
  }

  const PassGrid grid_;
  std::vector<PassPlaces> places_;
  Matched matched_;
  std::vector<std::int32_t> last_on_channel_;  // per peer and direction, of the rank being read
};

}  // namespace

Matched check_contents(const Program& program, std::vector<Problem>& problems) {
  Matched matched = Contents(program, problems).run();
  check_offload(program, problems);
  return matched;
}

}  // namespace sluice
