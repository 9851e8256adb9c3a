// offload_schedule.h - offload planned with simulated times. Read next: schedule/offload.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/schedule/offload.h"
#include "sluice/sim/cost_model.h"

namespace sluice {

/// k of a dense transformer layer before anything was measured (PipeOffload, arXiv 2503.01328): the
/// time to copy out and back what its forward saves over the time of F, I and W, with four-fold
/// feed-forward layers, full attention over `length` tokens in both directions, and 20 bytes saved
/// per token and hidden unit (16 bits, norms, GeLU and dropout recomputed). Microbatches, layers
/// and ranks cancel out. `flops_per_second` of a rank, `bytes_per_second` of its link in one
/// direction at a time.
double offload_ratio_of_layer(std::int64_t hidden, std::int64_t length, double flops_per_second,
                              double bytes_per_second);

/// Gives D and U of every stage their times from a ratio: a copy out and one back together take
/// `ratio` times the F and backward of the stage. Slices of a stage take equal times.
/// Throws: InvalidArgument for a ratio that is negative, not finite or above 1e6.
void set_offload_ratio(CostModel& cost, double ratio);

/// Puts D and U into `schedule` so that they are free at these times: simulates it without, plans,
/// simulates it again. What was in it before is replaced. `stage_bytes` is what one D of each stage
/// moves; empty: all alike. `slowdown` is the share by which the step may get longer: the link is
/// planned to carry that much more. Should the step get longer than that, as unequal passes can
/// make it, plans with longer copies until it does not. With an attention exchange, one of the
/// schedule without copies, passes take the times that it leaves them.
/// REQUIRES: validate(schedule) is empty; the cost model has the times of D and U.
OffloadPlan offload_schedule(const Schedule& schedule, const CostModel& cost,
                             const OffloadAmount& amount, double slowdown,
                             const std::vector<std::int64_t>& stage_bytes = {},
                             const ExchangePlan& exchange = {});

}  // namespace sluice
