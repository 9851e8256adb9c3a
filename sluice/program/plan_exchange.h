// plan_exchange.h - makes the ExchangePlan of a Program. Read next: verify_exchange.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/exchange.h"
#include "sluice/program/program.h"

namespace sluice {

/// What attention and everything else of a pass cost, per (stage, slice), index stage * num_slices
/// + slice, in ticks of the caller's choice. Planned with the forward's numbers for forwards and
/// backwards alike, so that both move the same. With document masks or windows `half` is what an
/// average half slice costs.
struct ExchangeCosts {
  int num_slices = 1;
  std::vector<std::int64_t> own;   // of a forward: all that cannot move, the diagonal included
  std::vector<std::int64_t> half;  // of a forward: attention to one half of an older slice
};

/// Costs of attention that is dense and causal with nothing else beside it: own 1, half 1. Every
/// pass then has 2 slice + 1 half slices of work, as in the paper's counting.
ExchangeCosts causal_costs(int num_stages, int num_slices);

/// What moving costs, in the ticks of the costs, for all layers of a stage together.
struct ExchangeLink {
  std::int64_t per_half = 0;      // K and V of half a slice, one way
  std::int64_t per_transfer = 0;  // Q out, partial output and statistics back
};

/// Plans which pass lends what to which. Slot groups come from the order alone, by strict lock
/// step: a forward takes an even slot, a backward (B or I) the next odd one, the earliest after all
/// that it needs and after the rank's pass before it. So no pass of a slot can depend, through any
/// chain, on another one of it, and in SlimPipe's order the slots are the published ones.
///  - kPairwise: in slots where all ranks are busy, the rank with the k-th shortest context takes
///    half the difference from the one with the k-th longest, in whole slices, its oldest ones.
///  - kBalanced: in every slot the costs of all busy ranks are levelled to within one half slice,
///    across microbatch junctions, in warm-up and drain too, moving as few half slices as that
///    takes over as few transfers as a two-pointer match finds. Where the slowest rank of a slot
///    would not gain what `link` charges the ranks, that slot's exchange is left out.
/// Takes time in proportion to the passes: equal slots are planned once.
/// REQUIRES: a Program that ends (check_progress), costs of its sizes.
ExchangePlan plan_exchange(const Program& program, ExchangeMode mode, const ExchangeCosts& costs,
                           const ExchangeLink& link = {});

}  // namespace sluice
