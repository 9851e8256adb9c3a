#include "sluice/program/program.h"

#include <fmt/format.h>

#include "sluice/common/errors.h"

namespace sluice {

std::string_view to_string(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kSendForward:
      return "send_forward";
    case Lane::kSendBackward:
      return "send_backward";
    case Lane::kReceiveForward:
      return "receive_forward";
    case Lane::kReceiveBackward:
      return "receive_backward";
    case Lane::kVocabulary:
      return "vocabulary";
    case Lane::kExchange:
      return "exchange";
    case Lane::kCopyOut:
      return "copy_out";
    case Lane::kCopyIn:
      return "copy_in";
  }
  throw InternalError(fmt::format("no lane {}", static_cast<int>(lane)));
}

std::string_view to_string(Collective collective) {
  switch (collective) {
    case Collective::kNone:
      return "no collective";
    case Collective::kReduceEmbedding:
      return "reduce embedding";
    case Collective::kBroadcastHidden:
      return "broadcast hidden";
    case Collective::kGatherStatistics:
      return "gather statistics";
    case Collective::kReduceHiddenGradient:
      return "reduce hidden gradient";
    case Collective::kBroadcastEmbeddingGradient:
      return "broadcast embedding gradient";
  }
  throw InternalError(fmt::format("no collective {}", static_cast<int>(collective)));
}

std::string to_string(const Action& action, bool with_slice) {
  switch (action.kind) {
    case ActionKind::kPass:
      return to_string(action.pass, with_slice);
    case ActionKind::kSend:
      return fmt::format("send {} to rank {}", to_string(action.pass, with_slice), action.peer);
    case ActionKind::kReceive:
      return fmt::format("receive {} from rank {}", to_string(action.pass, with_slice),
                         action.peer);
    case ActionKind::kOptimizer:
      return "optimizer";
    case ActionKind::kCollective:
      return fmt::format("{} of {}", to_string(action.collective),
                         to_string(action.pass, with_slice));
  }
  throw InternalError(fmt::format("no action kind {}", static_cast<int>(action.kind)));
}

std::int64_t Program::num_messages() const {
  std::int64_t count = 0;
  for (const RankProgram& rank : ranks) {
    for (const Action& action : rank.actions) count += action.kind == ActionKind::kSend ? 1 : 0;
  }
  return count;
}

}  // namespace sluice
