// channels.h - which channels the messages of a run use, for transports that must open them first.
// Read next: trainer.h.
#pragma once

#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/program/program.h"

namespace sluice {

/// Channels of one pipeline: those of the sends of `programs`, of their attention exchange and
/// collectives, of a tied matrix, and of the rows of a sharded vocabulary when they are saved.
std::vector<Channel> pipeline_channels(const std::vector<const Program*>& programs,
                                       bool tied_embedding);

/// Channels among `num_replicas` copies of a rank: gradients and values go from each to each.
std::vector<Channel> replica_channels(int num_replicas);

}  // namespace sluice
