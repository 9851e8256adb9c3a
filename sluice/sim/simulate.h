// simulate.h - predicts time and memory of a Program without running it.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/program.h"
#include "sluice/sim/cost_model.h"
#include "sluice/sim/memory_model.h"
#include "sluice/trace/timeline.h"

namespace sluice {

struct SimulateOptions {
  bool record_timeline = false;         // keep every span
  const MemoryModel* memory = nullptr;  // not owned; null: count activations only
  bool record_memory = false;           // keep the MemoryCurve (needs memory)
};

struct Simulation {
  BubbleReport bubble;                   // ticks of the cost model
  std::vector<std::int64_t> busy;        // per rank, compute lane
  std::vector<std::int64_t> own_span;    // per rank, first begin to last end on compute
  std::vector<std::int64_t> peak_saved;  // per rank, (microbatch, slice) passes saved at once:
                                         // +1 at F, -1 at the end of B or W; with offload -1
                                         // where the first pass waits for a D, +1 at U
  std::vector<std::int64_t> peak_until_input;  // the same with -1 at the end of B or I
  std::vector<std::int64_t> peak_away;         // per rank, passes whose activations are away at
                                               // once: from F until B or I, which is what host
                                               // or disk must hold
  std::vector<MemoryPeaks> memory;             // per rank, empty without a memory model
  std::vector<std::int64_t> peak_bytes_away;   // per rank, the bytes of peak_away; empty as above
  Timeline timeline;                           // empty unless recorded
  MemoryCurve curve;                           // empty unless recorded
};

/// Event simulation over the lanes: an action starts when its lane is free, its dependencies have
/// ended and, for a receive, its message has arrived; a collective starts when what all ranks give
/// is there, and ends for all at once. Longest path over integer time, so the result
/// is exact and does not depend on any order of evaluation.
/// Messages take their time on the way from the sender's pass to the receiver's; they keep neither
/// rank from computing, nor each other from travelling unless they share a link that the costs call
/// occupied. A receive's span is empty and stands at the arrival. Bubbles, spans and busy time
/// count compute passes; the optimizer takes no time. Memory follows the rules of docs/memory.md.
/// REQUIRES: verify(program) is empty; costs of as many stages and slices. Throws: InternalError on
/// a cycle; InvalidArgument when the times are too long to add up in 63 bits.
Simulation simulate(const Program& program, const CostModel& cost,
                    const SimulateOptions& options = {});

}  // namespace sluice
