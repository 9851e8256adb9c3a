#include "sluice/train/channels.h"

#include "sluice/runtime/messages.h"

namespace sluice {
namespace {

/// Every channel of one direction.
void add_all(std::vector<Channel>& channels, int num_ranks, Direction direction) {
  for (const Channel& channel : every_channel(num_ranks)) {
    if (channel.direction == direction) channels.push_back(channel);
  }
}

void add_exchange(std::vector<Channel>& channels, const ExchangePlan& plan) {
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) {
    for (const PassExchange& pass : plan.ranks[static_cast<std::size_t>(rank)]) {
      for (const ExchangeEntry& entry : pass.lend) {
        channels.push_back({rank, entry.peer, Direction::kExchange});
        channels.push_back({entry.peer, rank, Direction::kExchange});
      }
    }
  }
}

void add_program(std::vector<Channel>& channels, const Program& program) {
  for (int rank = 0; rank < program.num_ranks(); ++rank) {
    for (const Action& action : program.ranks[static_cast<std::size_t>(rank)].actions) {
      if (action.kind != ActionKind::kSend) continue;
      channels.push_back({rank, action.peer, tag_of(action.pass).direction});
    }
  }
  add_exchange(channels, program.exchange);
  if (program.vocab != VocabForm::kLast) {
    add_all(channels, program.num_ranks(), Direction::kCollective);
    for (int rank = 1; rank < program.num_ranks(); ++rank) {
      channels.push_back({rank, 0, Direction::kBackward});  // rows that are saved
    }
  }
}

}  // namespace

std::vector<Channel> pipeline_channels(const std::vector<const Program*>& programs,
                                       bool tied_embedding) {
  std::vector<Channel> channels;
  for (const Program* program : programs) {
    add_program(channels, *program);
    const int embedding = program->placement.rank_of(0);
    const int head = program->placement.rank_of(program->num_stages() - 1);
    if (!tied_embedding || embedding == head) continue;
    channels.push_back({embedding, head, Direction::kForward});
    channels.push_back({head, embedding, Direction::kBackward});
  }
  return channels;
}

std::vector<Channel> replica_channels(int num_replicas) {
  std::vector<Channel> channels;
  add_all(channels, num_replicas, Direction::kBackward);
  return channels;
}

}  // namespace sluice
