// offload_slots.h - where each copied-out activation lies in a rank's host pool or disk file.
// Read next: runtime/far_store.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// Places of one rank's copies, planned once for every step. A place is taken when the D is issued
/// and free again once the B or I that waits for the U is issued, so that the copy into a place
/// never begins before the copy out of it has ended.
struct OffloadSlots {
  std::vector<std::int64_t> offset;  // per PassGrid index; -1: never copied
  std::vector<std::int64_t> size;    // bytes, as above
  std::int64_t capacity = 0;         // bytes of the pool or file
};

/// Plans them first fit, each place at a multiple of `alignment`. `stage_bytes[s]`: what one D of
/// stage s moves. REQUIRES: verify(program) is empty; one entry per stage; alignment >= 1.
OffloadSlots plan_offload_slots(const Program& program, int rank,
                                const std::vector<std::int64_t>& stage_bytes,
                                std::int64_t alignment);

}  // namespace sluice
