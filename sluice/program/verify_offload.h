// verify_offload.h - the part of verify() that proves offload copies. Read next: lower_offload.h.
#pragma once

#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// Everything wrong with the D and U actions of `program`:
///  - each is on its lane and on the rank of its stage, and at most one of each there is per
///    (stage, microbatch, slice), a U exactly where there is a D;
///  - D waits for its F, U for its own D, the B or I for the U, and copies wait for passes alone:
///    so every activation walks present, leaving, away, returning, present, freed;
///  - nobody uses the activations between: the W comes after its I, and no pass of theirs stands
///    between D and U in the list.
/// REQUIRES: the dependency arrays of every rank are well formed.
void check_offload(const Program& program, std::vector<Problem>& problems);

/// Largest number of bytes that each rank has away at once, from D to the B or I that waits for its
/// U: what its host pool or disk file must hold. `stage_bytes[s]` is what one D of stage s moves.
/// REQUIRES: verify(program) is empty; one entry per stage.
std::vector<std::int64_t> peak_bytes_away(const Program& program,
                                          const std::vector<std::int64_t>& stage_bytes);

}  // namespace sluice
