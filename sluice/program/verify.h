// verify.h - proves a Program correct without running it.
#pragma once

#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// Everything wrong with `program`; empty when it is proved that
///  1. it ends even when no send is buffered: a send completes only once its receive is posted,
///     channels deliver in order, a compute pass waits for its dependencies, the issuing thread for
///     nothing else (the walk is exhaustive since the actions of a lane have one order);
///  2. every send has exactly one receive on the peer it names and the two agree on the pass, and
///     both ends of a channel have the same order; every pass waits for what it receives, every
///     send for the pass that makes what it sends, and no message for another message;
///  3. every saved activation is used exactly once and freed: F, then B, or I and W;
///     What a D copies out comes back in one U: D after F, U after its D, B or I after U; until
///     then nobody uses it;
///  4. every gradient is complete before the optimizer: all B, W, T and G of the rank come before
///     it;
///  5. slices: K/V of a slice exists before a later slice looks at it, its gradient is complete
///  (all
///     later slices have been backward) before its own backward uses and frees it, once;
///  6. exchanged attention: both ranks carry the same entry, and passes that exchange can run at
///  the
///     same time (verify_exchange.h);
///  7. all ranks issue the same collectives in the same order, each after the pass whose result it
///     carries and before the passes that need it; there are all E, G, S and T or none. When this
///     fails point 1 is not looked at.
/// A deadlock is reported per rank: the action it stands at and what that waits for.
/// Problem::position is an index into the actions of the rank. Takes time proportional to the
/// number of actions. Safe on any bytes: a program that was damaged is reported, not trusted.
std::vector<Problem> verify(const Program& program);

}  // namespace sluice
