#include "sluice/program/lower.h"

#include <limits>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/program/collectives.h"
#include "sluice/program/lower_offload.h"
#include "sluice/program/pass_grid.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

// One (source, destination, direction): its messages in the order the source produces them.
struct Channel {
  std::int32_t source = kNoAction;
  std::int32_t destination = kNoAction;
  std::vector<std::uint32_t> messages;  // index in the grid * 2, + 1 for the output of an I
  std::size_t num_received = 0;         // messages whose receive has been placed
};

class Lowering {
 public:
  explicit Lowering(const Schedule& schedule)
      : schedule_(schedule),
        grid_{schedule.num_stages(), schedule.num_microbatches, schedule.num_slices},
        places_(grid_.size()),
        vocab_passes_(find_vocab_passes(schedule)) {
    SLUICE_CHECK(grid_.size() < std::size_t{1} << 30, "{} passes per kind", grid_.size());
    SLUICE_CHECK(static_cast<int>(schedule.ranks.size()) == schedule.num_ranks(),
                 "{} rank lists for {} ranks", schedule.ranks.size(), schedule.num_ranks());
  }

  Program run() {
    program_.name = schedule_.name;
    program_.placement = schedule_.placement;
    program_.num_microbatches = schedule_.num_microbatches;
    program_.num_slices = schedule_.num_slices;
    program_.forward_only = schedule_.forward_only;
    program_.vocab = schedule_.vocab;
    program_.ranks.resize(schedule_.ranks.size());
    open_channels();
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) list_messages(rank);
    collectives_ = order_collectives(schedule_, vocab_passes_);
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) emit_rank(rank);
    check_complete();
    return std::move(program_);
  }

 private:
  // Neighbouring stages on different ranks get a channel each way; boundaries between the same two
  // ranks share it.
  void open_channels() {
    const int num_stages = schedule_.num_stages();
    channel_of_[0].assign(static_cast<std::size_t>(num_stages), kNoAction);
    channel_of_[1].assign(static_cast<std::size_t>(num_stages), kNoAction);
    std::vector<std::vector<std::int32_t>> from(static_cast<std::size_t>(schedule_.num_ranks()));
    std::vector<std::size_t> num_boundaries;
    const auto open = [&](int direction, int stage, int peer_stage) {
      const std::int32_t source = schedule_.placement.rank_of(stage);
      const std::int32_t destination = schedule_.placement.rank_of(peer_stage);
      if (source == destination) return;
      std::int32_t& slot = channel_of_[direction][static_cast<std::size_t>(stage)];
      for (const std::int32_t known : from[static_cast<std::size_t>(source)]) {
        if (channels_[static_cast<std::size_t>(known)].destination == destination) slot = known;
      }
      if (slot == kNoAction) {
        slot = static_cast<std::int32_t>(channels_.size());
        channels_.push_back({source, destination, {}, 0});
        num_boundaries.push_back(0);
        from[static_cast<std::size_t>(source)].push_back(slot);
      }
      ++num_boundaries[static_cast<std::size_t>(slot)];
    };
    for (int stage = 0; stage + 1 < num_stages; ++stage) open(0, stage, stage + 1);
    for (auto& known : from) known.clear();  // the directions never share a channel
    if (!schedule_.forward_only) {
      for (int stage = num_stages - 1; stage > 0; --stage) open(1, stage, stage - 1);
    }
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      channels_[c].messages.reserve(num_boundaries[c] * grid_.stage_stride());
    }
  }

  // The channel on which the output of `pass` leaves, or null when nobody elsewhere needs it.
  Channel* output_channel(const Pass& pass) {
    const std::int32_t channel =
        channel_of_[direction_of(pass.kind)][static_cast<std::size_t>(pass.stage)];
    return channel == kNoAction ? nullptr : &channels_[static_cast<std::size_t>(channel)];
  }

  void list_messages(int rank) {
    for (const Pass& pass : schedule_.ranks[static_cast<std::size_t>(rank)]) {
      check_pass(rank, pass);
      if (!runs_layers(pass.kind)) continue;
      if (Channel* channel = output_channel(pass)) {
        channel->messages.push_back(static_cast<std::uint32_t>(
            2 * grid_.index(pass) + (pass.kind == PassKind::kBackwardInput ? 1 : 0)));
      }
    }
  }

  void check_pass(int rank, const Pass& pass) const {
    switch (pass.kind) {
      case PassKind::kForward:
      case PassKind::kEmbedForward:
      case PassKind::kVocabForward:
        break;
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
      case PassKind::kBackwardWeight:
      case PassKind::kOffload:
      case PassKind::kReload:
      case PassKind::kEmbedBackward:
      case PassKind::kVocabBackward:
        SLUICE_CHECK(!schedule_.forward_only, "{} in a schedule of forwards alone", describe(pass));
        break;
      default:
        throw InternalError(
            fmt::format("internal error: lowering knows passes F, B, I, W, E, G, S, T, D and U; {} "
                        "on rank {} is of kind {}",
                        describe(pass), rank, letter(pass.kind)));
    }
    SLUICE_CHECK(grid_.contains(pass),
                 "{} on rank {} lies outside {} stages, {} microbatches, {} "
                 "slices",
                 describe(pass), rank, grid_.num_stages, grid_.num_microbatches, grid_.num_slices);
    SLUICE_CHECK(home_rank(schedule_, pass) == rank, "{} stands on rank {}", describe(pass), rank);
  }

  void emit_rank(int rank) {
    RankProgram& out = program_.ranks[static_cast<std::size_t>(rank)];
    const std::vector<Pass>& passes = schedule_.ranks[static_cast<std::size_t>(rank)];
    reserve(rank, out, passes.size());
    out.dependency_begin.push_back(0);
    std::vector<std::int32_t> last_gradient(schedule_.placement.stages_of(rank).empty()
                                                ? 0
                                                : static_cast<std::size_t>(grid_.num_stages),
                                            kNoAction);
    OffloadLowering copies(passes, grid_);
    CollectivePlacer vocabulary(schedule_, vocab_passes_, collectives_, rank);
    std::int32_t last_shard_gradient[2] = {kNoAction, kNoAction};  // T, G
    for (const Pass& pass : passes) {
      if (pass.kind == PassKind::kOffload) {
        copies.at_out(pass);
        continue;
      }
      needed_ = vocabulary.before(out, pass);
      if (!is_stage_pass(pass.kind)) {
        const std::int32_t action = emit_shard(out, pass);
        if (pass.kind == PassKind::kVocabBackward) last_shard_gradient[0] = action;
        if (pass.kind == PassKind::kEmbedBackward) last_shard_gradient[1] = action;
        copies.after_compute(pass, action);
        vocabulary.after(out, pass, action);
        continue;
      }
      for (const std::int32_t needed : copies.dependencies(pass)) pending_.push_back(needed);
      const std::int32_t action = emit_pass(out, pass);
      if (pass.kind == PassKind::kReload) {
        copies.in_placed(pass, action);
        continue;
      }
      if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) {
        last_gradient[static_cast<std::size_t>(pass.stage)] = action;
      }
      if (runs_layers(pass.kind)) emit_send(out, pass, action);
      vocabulary.after(out, pass, action);
      for (const Pass& copy : copies.after_compute(pass, action)) {
        out.dependencies.push_back(places_[grid_.index(copy)].forward);
        copies.out_placed(
            copy, append(out, {.kind = ActionKind::kPass, .lane = Lane::kCopyOut, .pass = copy}));
      }
    }
    vocabulary.finish(out);
    if (schedule_.forward_only) return;
    for (const int stage : schedule_.placement.stages_of(rank)) {
      const std::int32_t action = last_gradient[static_cast<std::size_t>(stage)];
      if (action != kNoAction) out.dependencies.push_back(action);
    }
    for (const std::int32_t action : last_shard_gradient) {
      if (action != kNoAction) out.dependencies.push_back(action);
    }
    append(out, {.kind = ActionKind::kOptimizer, .lane = Lane::kCompute, .pass = {}});
  }

  void reserve(int rank, RankProgram& out, std::size_t num_passes) const {
    std::size_t num_messages = 0;
    for (const Channel& channel : channels_) {
      if (channel.source == rank || channel.destination == rank) {
        num_messages += channel.messages.size();
      }
    }
    const std::size_t num_actions = num_passes + num_messages + 1;
    SLUICE_CHECK(num_actions < std::size_t{std::numeric_limits<std::int32_t>::max()} / 4,
                 "{} actions on rank {}", num_actions, rank);
    out.actions.reserve(num_actions);
    out.dependency_begin.reserve(num_actions + 1);
    const std::size_t per_pass = grid_.num_slices > 1 ? 3 : 2;
    out.dependencies.reserve(num_passes * per_pass + num_messages +
                             schedule_.placement.stages_of(rank).size());
  }

  // The pass with what it waits for because of copies. Receives are actions of their own and stand
  // before it, so that these come last.
  std::int32_t append_pass(RankProgram& out, const Pass& pass) {
    out.dependencies.insert(out.dependencies.end(), pending_.begin(), pending_.end());
    pending_.clear();
    const Lane lane = pass.kind == PassKind::kReload ? Lane::kCopyIn : Lane::kCompute;
    return append(out, {.kind = ActionKind::kPass, .lane = lane, .pass = pass});
  }

  // The dependencies of an action are pushed before the action itself.
  static std::int32_t append(RankProgram& out, const Action& action) {
    const auto position = static_cast<std::int32_t>(out.actions.size());
    out.actions.push_back(action);
    out.dependency_begin.push_back(static_cast<std::int32_t>(out.dependencies.size()));
    return position;
  }

  // E, G, S or T; verify() sees to it that each is there once.
  std::int32_t emit_shard(RankProgram& out, const Pass& pass) {
    need_collectives(out);
    return append(out, {.pass = pass});
  }

  void need_collectives(RankProgram& out) const {
    for (const std::int32_t collective : needed_) {
      if (collective != kNoAction) out.dependencies.push_back(collective);
    }
  }

  std::int32_t emit_pass(RankProgram& out, const Pass& pass) {
    const std::size_t at = grid_.index(pass);
    switch (pass.kind) {
      case PassKind::kForward: {
        SLUICE_CHECK(places_[at].forward == kNoAction, "{} is scheduled twice", describe(pass));
        // Receives are actions of their own: place them before this action's dependencies begin.
        const std::int32_t input =
            pass.stage == 0 ? kNoAction : input_of(out, pass, 0, pass.stage - 1);
        if (input != kNoAction) out.dependencies.push_back(input);
        need_collectives(out);
        if (pass.slice > 0)
          need(out, pass, places_[at - 1].forward, "the forward of the slice before");
        return places_[at].forward = append_pass(out, pass);
      }
      case PassKind::kBackward:
      case PassKind::kBackwardInput: {
        SLUICE_CHECK(places_[at].backward == kNoAction, "{} is scheduled twice", describe(pass));
        const std::int32_t input =
            pass.stage + 1 == grid_.num_stages ? kNoAction : input_of(out, pass, 1, pass.stage + 1);
        need(out, pass, places_[at].forward, "its forward");
        if (input != kNoAction) out.dependencies.push_back(input);
        need_collectives(out);
        if (pass.slice + 1 < grid_.num_slices) {
          need(out, pass, places_[at + 1].backward, "the backward of the slice after");
        }
        places_[at].backward_kind = pass.kind;
        return places_[at].backward = append_pass(out, pass);
      }
      case PassKind::kReload:
        return append_pass(out, pass);
      default: {  // W: check_pass() let nothing else through
        SLUICE_CHECK(places_[at].weight == kNoAction, "{} is scheduled twice", describe(pass));
        SLUICE_CHECK(places_[at].backward == kNoAction ||
                         places_[at].backward_kind == PassKind::kBackwardInput,
                     "{} follows a full backward", describe(pass));
        need(out, pass, places_[at].backward, "its backward for the input");
        return places_[at].weight = append_pass(out, pass);
      }
    }
  }

  void need(RankProgram& out, const Pass& pass, std::int32_t action, const char* what) const {
    SLUICE_CHECK(action != kNoAction, "{} is scheduled before {}", describe(pass), what);
    out.dependencies.push_back(action);
  }

  // The action that makes what `pass` takes from `producer_stage`: a local pass, or a receive,
  // which is placed here with all earlier messages of its channel that are still open. Both ends
  // thus have the sender's order, and a receive stands no later than any consumer of a later
  // message.
  std::int32_t input_of(RankProgram& out, const Pass& pass, int direction, int producer_stage) {
    const std::size_t producer = direction == 0 ? grid_.index(pass) - grid_.stage_stride()
                                                : grid_.index(pass) + grid_.stage_stride();
    const std::int32_t id = channel_of_[direction][static_cast<std::size_t>(producer_stage)];
    if (id == kNoAction) {
      const std::int32_t local =
          direction == 0 ? places_[producer].forward : places_[producer].backward;
      SLUICE_CHECK(local != kNoAction, "{} is scheduled before its input from stage {}",
                   describe(pass), producer_stage);
      return local;
    }
    Channel& channel = channels_[static_cast<std::size_t>(id)];
    while (places_[producer].receive[direction] == kNoAction) {
      SLUICE_CHECK(channel.num_received < channel.messages.size(),
                   "nobody produces the input of {}", describe(pass));
      const std::uint32_t message = channel.messages[channel.num_received++];
      const PassKind kind = direction == 0     ? PassKind::kForward
                            : message % 2 == 1 ? PassKind::kBackwardInput
                                               : PassKind::kBackward;
      if (message / 2 == producer) {  // nearly always: spares the divisions of pass_at()
        emit_receive(out, channel, {kind, producer_stage, pass.microbatch, pass.slice});
      } else {
        emit_receive(out, channel, grid_.pass_at(message / 2, kind));
      }
    }
    return places_[producer].receive[direction];
  }

  void emit_receive(RankProgram& out, const Channel& channel, const Pass& message) {
    const int direction = direction_of(message.kind);
    PassPlaces& places = places_[grid_.index(message)];
    const std::int32_t send = places.send[direction];  // known when the source was emitted before
    const std::int32_t receive =
        append(out, {.kind = ActionKind::kReceive,
                     .lane = direction == 0 ? Lane::kReceiveForward : Lane::kReceiveBackward,
                     .peer = channel.source,
                     .peer_action = send,
                     .pass = message});
    places.receive[direction] = receive;
    if (send != kNoAction) {
      program_.ranks[static_cast<std::size_t>(channel.source)]
          .actions[static_cast<std::size_t>(send)]
          .peer_action = receive;
    }
  }

  void emit_send(RankProgram& out, const Pass& pass, std::int32_t producer) {
    const Channel* channel = output_channel(pass);
    if (channel == nullptr) return;
    const int direction = direction_of(pass.kind);
    PassPlaces& places = places_[grid_.index(pass)];
    const std::int32_t receive = places.receive[direction];
    out.dependencies.push_back(producer);
    const std::int32_t send =
        append(out, {.kind = ActionKind::kSend,
                     .lane = direction == 0 ? Lane::kSendForward : Lane::kSendBackward,
                     .peer = channel->destination,
                     .peer_action = receive,
                     .pass = pass});
    places.send[direction] = send;
    if (receive != kNoAction) {
      program_.ranks[static_cast<std::size_t>(channel->destination)]
          .actions[static_cast<std::size_t>(receive)]
          .peer_action = send;
    }
  }

  void check_complete() const {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const PassPlaces& places = places_[i];
      const bool whole = schedule_.forward_only
                             ? places.forward != kNoAction
                             : places.forward != kNoAction && places.backward != kNoAction &&
                                   (places.weight != kNoAction) ==
                                       (places.backward_kind == PassKind::kBackwardInput);
      SLUICE_CHECK(whole, "the schedule lacks {} or a backward of it",
                   describe(grid_.pass_at(i, PassKind::kForward)));
    }
  }

  std::string describe(const Pass& pass) const { return to_string(pass, grid_.num_slices > 1); }

  const Schedule& schedule_;
  PassGrid grid_;
  std::vector<PassPlaces> places_;
  std::vector<Channel> channels_;
  std::vector<std::int32_t> pending_;        // copies that the next pass waits for
  std::vector<std::int32_t> channel_of_[2];  // [direction][producing stage]; kNoAction: same rank
  const VocabPasses vocab_passes_;
  std::vector<CollectiveId> collectives_;                        // in the order of issue
  std::array<std::int32_t, 2> needed_ = {kNoAction, kNoAction};  // collectives of the next pass
  Program program_;
};

}  // namespace

Program lower(const Schedule& schedule) { return Lowering(schedule).run(); }

}  // namespace sluice
