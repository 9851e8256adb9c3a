// verify_exchange.h - the part of verify() about exchanged attention. Read next: plan_exchange.h.
#pragma once

#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// Everything wrong with the exchange of `program`, added to `problems`:
///  - an entry that is not in the lists of both ranks with the same range and slot, a forward's
///  with
///    a backward's, or with a pass that the peer does not run;
///  - K/V that is not an older slice of the lender's own, or is lent twice;
///  - passes that are not listed in the order in which their rank runs them.
/// Safe on any bytes. REQUIRES: the dependency arrays of every rank are well formed.
void check_exchange(const Program& program, std::vector<Problem>& problems);

/// A circle: passes of one slot start together, so none may wait, through any chain of passes,
/// messages and other slots, for another one of its slot. Walks all ranks until nothing moves,
/// where a pass that exchanges goes on only when all of its slot have come; that the walk ends is
/// the proof, and where it does not, it says which slot never starts, who has come and who has not.
/// REQUIRES: verify() finds nothing else wrong.
void check_exchange_progress(const Program& program, std::vector<Problem>& problems);

}  // namespace sluice
