// verify_impl.h - the two halves of verify(): what the lists say, and whether they ever end.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// Whether the message at an action has an answer: the two ends name each other and one pass.
/// matched[rank][action], 0 or 1; 1 for actions that are no messages.
using Matched = std::vector<std::vector<std::uint8_t>>;

/// Points 2, 3 and 4 of verify(): reads every action once and each (stage, microbatch, slice) once.
/// REQUIRES: the dependency arrays of every rank are well formed.
Matched check_contents(const Program& program, std::vector<Problem>& problems);

/// Point 5 of verify(). False when the walk of point 1 would mean nothing.
/// REQUIRES: as above.
bool check_vocabulary(const Program& program, std::vector<Problem>& problems);

/// Point 1 of verify(): walks all ranks until nothing moves, with sends that complete only together
/// with their receives, and collectives that complete once all ranks have posted them.
/// Messages without an answer never complete.
/// REQUIRES: as above, and `matched` of the same program.
void check_progress(const Program& program, const Matched& matched, std::vector<Problem>& problems);

}  // namespace sluice
