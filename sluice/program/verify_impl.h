// verify_impl.h - the two halves of verify(): what the lists say, and whether they ever end.
#pragma once

#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// Points 2, 3 and 4 of verify(): reads every action once and each (stage, microbatch, slice) once.
/// REQUIRES: the dependency arrays of every rank are well formed.
void check_contents(const Program& program, std::vector<Problem>& problems);

/// Point 1 of verify(): walks all ranks until nothing moves, with sends that complete only together
/// with their receives. Messages whose two ends do not name each other never complete.
/// REQUIRES: as above.
void check_progress(const Program& program, std::vector<Problem>& problems);

/// True when the two ends of the message at `action` of `rank` name each other.
bool is_matched(const Program& program, int rank, std::size_t action);

}  // namespace sluice
