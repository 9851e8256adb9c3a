// slice_loop.h - the loop that seq1f1b and slimpipe share. Read next: slimpipe.cc.
#pragma once

#include "sluice/schedule/generators.h"

namespace sluice {

/// How a rank walks the slices of a microbatch: local number k = 0 .. slices * chunks - 1 goes in
/// cycles of `cycle` slices, each through all chunks before the next cycle.
struct SliceOrder {
  int slices = 1;
  int chunks = 1;
  int cycle = 1;  // divides slices

  int per_microbatch() const { return slices * chunks; }
  int slice_of(int k) const { return k / (chunks * cycle) * cycle + k % cycle; }
  int chunk_of(int k) const { return k % (chunks * cycle) / cycle; }
};

/// Forwards in the given order, microbatch after microbatch; backwards of a microbatch in the exact
/// reverse (last in, first out), microbatches first in, first out. Rank r keeps slices * chunks +
/// skew * (ranks - 1 - r) forwards in flight, as far as there are any; then one forward, one
/// backward, and at the end backwards alone. REQUIRES: checked sizes.
Schedule slice_loop(std::string name, const ScheduleRequest& request, const SliceOrder& order,
                    int skew);

}  // namespace sluice
