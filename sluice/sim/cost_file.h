// cost_file.h - measured times as JSON (`sluice simulate --costs FILE`). Read next: cost_model.h.
#pragma once

#include <string>
#include <string_view>

#include "sluice/sim/cost_model.h"

namespace sluice {

/// Times of one microbatch on each rank, as measured.
struct CostFile {
  RankTimes times;
  std::string unit;               // "s", "ms", "us", "ns", or empty
  double seconds_per_unit = 0.0;  // 0 without a unit
};

/// Reads {"unit": "us", "forward": .., "backward": .., "p2p": ..}: every value is one number or an
/// array with one for each of `num_ranks` ranks; instead of "backward" there may be
/// "backward_input" and "backward_weight". p2p has one value for all ranks. The keys of vocabulary
/// passes ("vocab_pass", "embed_forward", "embed_backward", "vocab_barrier") may only be 0 as long
/// as these passes are not built.
/// Throws: InvalidArgument with the key, its value and the rule.
CostFile parse_cost_file(std::string_view json, int num_ranks);

}  // namespace sluice
