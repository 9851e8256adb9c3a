// cost_file.h - measured times as JSON (`sluice simulate --costs FILE`). Read next: cost_model.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/schedule.h"
#include "sluice/sim/cost_model.h"

namespace sluice {

/// Times of one microbatch on each rank, as measured. A vector has one entry per rank, or none when
/// its key is absent.
struct CostFile {
  RankTimes times;                     // forward, backward or its two parts, p2p
  std::optional<SliceTimes> slices;    // instead of `times`, when slices were measured one by one
  double exchange_kv = 0.0;            // K and V of a microbatch, all layers of a rank, to a peer
  double exchange_q = 0.0;             // its Q there and the result back
  std::string unit;                    // "s", "ms", "us", "ns", or empty
  double seconds_per_unit = 0.0;       // 0 without a unit
  std::vector<double> vocab_pass;      // S plus T
  std::vector<double> embed_forward;   // E
  std::vector<double> embed_backward;  // G
  std::vector<double> vocab_barrier;
};

/// Reads {"unit": "us", "forward": .., "backward": .., "p2p": ..}: every value is one number or an
/// array with one for each of `num_ranks` ranks; instead of "backward" there may be
/// "backward_input" and "backward_weight". Or {"forward_slices": [..], "backward_slices": [..]} (or
/// "backward_input_slices" and "backward_weight_slices"): arrays of any one length, the time of
/// each slice on one rank, for all ranks. "exchange_kv" and "exchange_q" are one number each. The
/// keys of vocabulary passes ("vocab_pass", "embed_forward", "embed_backward", "vocab_barrier") are
/// kept for add_vocab_costs(). REQUIRES: num_ranks >= 1. Throws: InvalidArgument with the key, its
/// value and the rule for text that is not one JSON object, a key that is unknown, missing or
/// doubled, an array of another length, a number that is negative, not finite or above 1e9.
CostFile parse_cost_file(std::string_view json, int num_ranks);

/// Whether the times say all that `schedule` needs and no more than it can use.
/// Throws: InvalidArgument when the schedule splits the backward and only "backward" is given,
/// naming the keys to add, or when a time other than 0 belongs to passes that the schedule does not
/// have.
void check_fits(const CostFile& costs, const Schedule& schedule);

/// Adds to `cost` what the passes E, G, S and T of `form` and their collectives take. Of vocab_pass
/// S takes two thirds in parallel-2 and one third in parallel-1, T the rest: their shares of the
/// matrix products. vocab_barrier (the longest of the ranks) is the time from the end of the last
/// S (parallel-1: of S, and again of T) until its result is everywhere. Each of the other
/// collectives, which move as many bytes as a message between stages, takes as long as one.
void add_vocab_costs(const CostFile& costs, VocabForm form, CostModel& cost);

}  // namespace sluice
