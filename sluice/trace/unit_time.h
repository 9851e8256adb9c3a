// unit_time.h - a Schedule squeezed in time units, for pictures of schedules that have no times.
#pragma once

#include "sluice/schedule/schedule.h"
#include "sluice/trace/timeline.h"

namespace sluice {

/// Every pass takes one tick, a full backward two, messages none; each starts as early as its
/// rank's order and its inputs allow. For real times and memory there is sim/simulate.h. REQUIRES:
/// validate(schedule) is empty. Throws: InternalError when it is not.
Timeline unit_time(const Schedule& schedule);

}  // namespace sluice
