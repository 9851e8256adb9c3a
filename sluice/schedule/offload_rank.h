// offload_rank.h - the copies of one rank in time. Used by plan_offload().
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/schedule/offload.h"

namespace sluice {

/// One saved activation of a rank: positions in the rank's list of passes and what it costs.
struct OffloadUnit {
  int forward = -1;   // F
  int backward = -1;  // B or I: needs it back
  int last = -1;      // B or W: frees it
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::int64_t size = 1;
};

/// A rank's passes in time with what they save.
struct OffloadRank {
  std::vector<PassInterval> passes;
  std::vector<OffloadUnit> units;  // in the order of their backwards
};

/// An entry of a rank's list with its copies.
struct OffloadItem {
  enum Kind : std::uint8_t { kPass, kOut, kIn };
  Kind kind = kPass;
  int index = 0;  // of the pass, or of the unit that is copied
};

/// Times the copies of the units with moves[unit] set, each D as early and each U as late as the
/// link allows, and returns the rank's list with them. A unit for which there is no time stays. At
/// most `backlog` activations wait for their D at once: with one more, the one that is needed back
/// first stays. Linear in passes and copies, but for the activations that wait.
std::vector<OffloadItem> time_copies(const OffloadRank& rank, std::vector<bool> moves,
                                     bool one_direction, int backlog);

/// Peaks on the device and away from it, read off the list: a forward adds its activations, a D
/// takes them away, a U brings them back, the last pass of the unit frees them. Space away is taken
/// from the forward to the backward.
RankOffload measure(const OffloadRank& rank, const std::vector<OffloadItem>& list);

}  // namespace sluice
