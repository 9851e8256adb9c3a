// program.h - a schedule made explicit: every pass, message and wait of every rank.
// Read next: lower.h, verify.h, then sim/simulate.h (predicts) and runtime/engine.h (runs).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/program/exchange.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

/// Where an action runs. Each lane of a rank works in order; lanes work at the same time. On a GPU
/// a lane is a stream, in processes an outstanding request, in threads a hand-over. Receives have
/// lanes of their own so that a rank that sends around the ring (interleaved, two ranks) never
/// waits behind its own receive.
enum class Lane : std::uint8_t {
  kCompute,
  kSendForward,      // activations to the next stage
  kSendBackward,     // gradients to the previous stage
  kReceiveForward,   // activations from the previous stage
  kReceiveBackward,  // gradients from the next stage
  kVocabulary,       // collectives of the vocabulary passes
  kExchange,         // attention exchange between ranks
  kCopyOut,          // offload: device to host or disk
  kCopyIn,           // offload: back
};
inline constexpr int kNumLanes = 9;

/// The lane's name in traces and reports, e.g. "send_forward".
std::string_view to_string(Lane lane);

enum class ActionKind : std::uint8_t {
  kPass,        // run `pass` (on a copy lane: kOffload, kReload)
  kSend,        // send the boundary tensor that `pass` produced to `peer`
  kReceive,     // receive the boundary tensor that `pass` produced on `peer`
  kOptimizer,   // all gradients of the rank are complete: reduce the norm, update the weights
  kCollective,  // take part in `collective`, which belongs to `pass`
};

/// What all ranks do together for the sharded vocabulary layers (arXiv 2411.05288), once for each
/// microbatch and slice. All ranks issue all of them in one order.
enum class Collective : std::uint8_t {
  kNone,
  kReduceEmbedding,             // rows of the embedding, of E, to the rank with the first stage
  kBroadcastHidden,             // C0: the output of the final norm, of F of the last stage, to all
  kGatherStatistics,            // C1: maximum, sum and label logit per token, of S, to all
  kReduceHiddenGradient,        // C1 or C2: of S (parallel-2) or T (parallel-1), to the last stage
  kBroadcastEmbeddingGradient,  // of B or I of the first stage, to all
};
inline constexpr int kNumCollectives = 6;

/// "broadcast hidden", "gather statistics", ...
std::string_view to_string(Collective collective);

/// One thing a rank does. `pass` is the pass itself, or the producing pass of a message: a forward
/// (activations) or a B or I (gradients). Of a collective it is the pass whose result it carries:
/// that of the root, or of the rank itself where every rank has one.
struct Action {
  ActionKind kind = ActionKind::kPass;
  Lane lane = Lane::kCompute;
  Collective collective = Collective::kNone;
  std::int32_t peer = -1;         // kSend, kReceive: the other rank; kCollective: the root, or -1
  std::int32_t peer_action = -1;  // kSend, kReceive: index of the matching action on the peer
  Pass pass;

  friend bool operator==(const Action&, const Action&) = default;
};

/// Whether the action is a D or U.
inline bool is_copy_action(const Action& action) {
  return action.kind == ActionKind::kPass && is_copy(action.pass.kind);
}

/// "2F0", "send 2F0 to rank 3", "receive 3I1 from rank 2", "broadcast hidden of 3F0", "optimizer".
std::string to_string(const Action& action, bool with_slice = false);

/// The actions of one rank in issue order. The issuing thread walks the list: it posts sends and
/// receives without waiting, and before a compute pass waits for the pass's dependencies. The order
/// within a lane is the order in this list.
/// Invariant: dependencies of action k are dependencies[dependency_begin[k] ..
/// dependency_begin[k + 1]), indices of earlier actions of the same rank; what comes from another
/// rank comes through a kReceive.
struct RankProgram {
  std::vector<Action> actions;
  std::vector<std::int32_t> dependency_begin;  // size actions + 1
  std::vector<std::int32_t> dependencies;

  std::span<const std::int32_t> dependencies_of(std::size_t action) const {
    return std::span(dependencies)
        .subspan(static_cast<std::size_t>(dependency_begin[action]),
                 static_cast<std::size_t>(dependency_begin[action + 1] - dependency_begin[action]));
  }
};

/// What all ranks do in one step. verify() proves it, simulate() times it, Engine runs it.
/// Messages travel on channels: (source rank, destination rank, forward or backward). The messages
/// of a channel are sent and received in one order; channels are independent of each other.
/// Collectives are posted like messages, without waiting; the k-th one of every rank is the same.
struct Program {
  std::string name;
  Placement placement;
  int num_microbatches = 0;
  int num_slices = 1;
  bool forward_only = false;
  VocabForm vocab = VocabForm::kLast;
  std::vector<RankProgram> ranks;
  ExchangePlan exchange;  // attention that ranks compute for each other

  int num_ranks() const { return placement.num_ranks(); }
  int num_stages() const { return placement.num_stages(); }
  std::int64_t num_messages() const;  // counted at the sender
};

}  // namespace sluice
