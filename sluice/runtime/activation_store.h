// activation_store.h - what the copies out and back do with saved activations while a step runs.
// Read next: far_store.h (where they go), engine.h (who asks).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/model/saved.h"
#include "sluice/program/program.h"
#include "sluice/runtime/far_store.h"
#include "sluice/runtime/ledger.h"
#include "sluice/trace/timeline.h"

namespace sluice {

/// Where an activation is. It walks through the states in this order and no other way.
enum class ActivationState : std::uint8_t {
  kSaved,      // on the device, with the stage: made by F and not touched by offload
  kLeaving,    // on the device, being copied out
  kAway,       // the copy is whole; the device memory goes at the first pass that waits for it
  kReturning,  // device memory taken, being copied back
  kPresent,    // on the device again; the B or I takes it to the stage
};

/// How copies are checked and what they took.
struct CopyCounters {
  std::int64_t num_out = 0;
  std::int64_t num_bytes_out = 0;
  std::int64_t num_bytes_in = 0;
  double seconds_out = 0.0;  // that copies took, by the clock
  double seconds_in = 0.0;
  std::int64_t peak_bytes_away = 0;  // most that were out at once, what is being copied included
  double processor_seconds = 0.0;    // of the helper thread
};

/// Copies the activations of one rank out and back on one helper thread: a copy back that may start
/// goes before one out, copies out run in the order of their starts, copies back in theirs.
/// Every step from state to state is asserted: InternalError names the pass and both states.
/// Ownership: takes the tensors of a StageSaved at start_out() and gives them, or equal ones, back
/// at finish_in(); until then nobody else can reach them. Keeps references to program, ledger and
/// store. Threads: the rank's thread calls; the helper thread is inside.
class ActivationStore {
 public:
  /// `check`: compare a checksum of what comes back with one of what left.
  ActivationStore(const Program& program, MemoryLedger& ledger, FarStore& store, bool check);
  ~ActivationStore();

  /// D: takes `saved` and begins to copy it. REQUIRES: its F has run.
  void start_out(const Pass& out, StageSaved& saved);

  /// Waits until the copy out is over and frees its device memory; at once when both are done.
  /// Throws: what the copy threw.
  void finish_out(const Pass& out);

  /// U: takes device memory and copies back, once the copies out in `frees` are over and freed.
  void start_in(const Pass& in, std::vector<Pass> frees);

  /// Waits until it is back and puts it into `saved`.
  /// Throws: what the copy threw; Failure naming the pass when the checksum differs.
  void finish_in(const Pass& in, StageSaved& saved);

  /// Spans of the copies of this step, in the order of their ends. Call when the step is over.
  /// Throws: InternalError when an activation is still on its way.
  std::vector<Span> finish_step();

  CopyCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
