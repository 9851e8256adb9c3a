// offload.h - which saved activations leave device memory, and when: passes D and U for any
// schedule. Read next: offload_rank.h (one rank's plan), program/lower.h (what becomes of D and U).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

/// When a pass runs, in ticks.
struct PassInterval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// times[r][i] is when ranks[r][i] of a schedule runs.
using PassTimetable = std::vector<std::vector<PassInterval>>;

/// Which activations may leave: the `num_chunks` longest-lived chunks of every rank, and of these
/// at most `num_units_percent` percent, longest-lived first.
struct OffloadAmount {
  int num_chunks = 0;
  int num_units_percent = 100;
};

/// Reads "none", "half", "full" or a count of chunks. "half" is the longer-lived half of the chunks
/// of a rank, rounded up, and with one chunk the longer-lived half of its activations. `option`
/// names what was set, for the error. Throws: InvalidArgument for other text, or more chunks than a
/// rank has.
OffloadAmount parse_offload(const std::string& option, const std::string& text,
                            const Placement& placement);

/// What copies cost and what they save.
struct OffloadCosts {
  std::vector<std::int64_t> out{};   // per stage: ticks to copy what one F saves out of the device
  std::vector<std::int64_t> in{};    // and back
  std::vector<std::int64_t> size{};  // per stage: what one F saves, in any unit; empty: 1 each
  bool one_direction = true;         // a rank copies one way at a time; else both ways at once
  std::int64_t message = 0;          // ticks of a message between ranks
};

/// What the plan comes to on one rank, in units of OffloadCosts::size.
struct RankOffload {
  std::int64_t peak_before = 0;  // largest amount saved on the device without offload
  std::int64_t peak = 0;         // the same with it, what is being copied included
  std::int64_t peak_away = 0;    // largest amount that host or disk must hold
  int num_moved = 0;             // copies out
};

/// A schedule with its passes D and U, and what they do for every rank.
struct OffloadPlan {
  Schedule schedule;
  std::vector<RankOffload> ranks;
};

/// Inserts D and U passes. Their places mean:
///  - D stands where its memory must be free: the next F or U of the list waits for it. The copy
///    itself starts as soon as its F has ended, in the order of the Ds;
///  - U stands where it may start, after the compute pass before it; its B or I waits for it;
///  - where a rank copies one way at a time, a U that is ready goes before a D that is.
/// So the largest amount on the device follows from the list alone, whatever the copies take.
///
/// Each rank by itself gets the plan of the smallest peak that its link can carry without delaying
/// a compute pass at the given times, and of those the one with the fewest copies: activations that
/// live longest go first, those that no longer lower the peak stay. Warm-up forwards are given time
/// up to where somebody waits for them.
/// REQUIRES: validate(schedule) is empty; no D or U in it; `times` are such that every pass has its
/// inputs. Throws: InvalidArgument for costs that are negative.
OffloadPlan plan_offload(const Schedule& schedule, const PassTimetable& times,
                         const OffloadCosts& costs, const OffloadAmount& amount);

/// The schedule without its D and U passes.
Schedule without_offload(Schedule schedule);

/// Whether there are any.
bool has_offload(const Schedule& schedule);

/// The times of `schedule` when each warm-up forward (before the rank's first backward) is as late
/// as its rank's next pass and its consumers allow. REQUIRES: as plan_offload.
PassTimetable delay_warm_up(const Schedule& schedule, PassTimetable times, std::int64_t message);

}  // namespace sluice
