// plan_offload.h - the copies of a run's plan: made before the first step, and again from what the
// first steps took. Read next: replan.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/program/program.h"
#include "sluice/schedule/schedule.h"
#include "sluice/sim/cost_model.h"
#include "sluice/trace/timeline.h"
#include "sluice/train/config.h"
#include "sluice/train/offload_setup.h"

namespace sluice {

/// What offload comes to, and the figures that it was planned with.
struct OffloadDecision {
  bool asked = false;          // whether anything may leave; else the rest is empty
  CopyRates rates;             // of the copies
  CostModel passes;            // as they last, an attention exchange included
  double k = 0.0;              // a copy there and back over the passes of what it carries
  std::int64_t num_moved = 0;  // of num_units activations
  std::int64_t num_units = 0;
  std::int64_t peak_before = 0;  // bytes of activations on the fullest rank without offload
  std::int64_t peak = 0;         // and with it
};

/// A schedule with its copies.
struct PlannedCopies {
  Schedule schedule;
  OffloadDecision decision;
};

/// Puts the copies that the run asks for into `schedule`, or those that the schedule has by itself;
/// what was in it before is replaced. `stage_bytes` is what one D of each stage moves, `exchange`
/// one of the Program without copies, or empty. Gives `cost` the times of D and U.
PlannedCopies plan_copies(const RunConfig& config, const CopyRates& rates, const Schedule& schedule,
                          const std::vector<std::int64_t>& stage_bytes,
                          const ExchangePlan& exchange, CostModel& cost);

/// Throws: InvalidArgument where a given amount was asked for, nothing can leave in time, and
/// something could over a faster link. `cost` is that of plan_copies().
void require_copies(const RunConfig& config, const PlannedCopies& copies,
                    const std::vector<std::int64_t>& stage_bytes, const CostModel& cost);

/// "k = 0.52 (host at 6.23 GB/s out, ...): 24 of 32 activations leave, peak of ..."
std::string to_string(const OffloadDecision& decision, const PipelineConfig& pipeline);

/// Costs of every (kind, stage) as measured: the median duration of its passes in `timeline` (in ns
/// ticks). Kinds that did not run keep 0. REQUIRES: the timeline is of a run of `program`.
CostModel measured_costs(const Timeline& timeline, const Program& program);

}  // namespace sluice
