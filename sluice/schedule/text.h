// text.h - schedules as CSV, a superset of PyTorch's pipeline CSV.
#pragma once

#include <string>
#include <string_view>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// One row per rank, one cell per pass ("2F0", or "2F0.3" when there is more than one slice).
/// PyTorch reads it back when there is one slice and only F, B, I, W occur.
std::string to_csv(const Schedule& schedule);

/// Reads a schedule from CSV: cells trimmed, empty cells (idle steps) skipped, blank last line
/// allowed. Rank, stage, microbatch and slice counts and the placement come from the cells; the
/// placement is the rank in whose row a stage occurs. `name` becomes Schedule::name.
/// Throws: InvalidArgument with row, column and cell for anything it cannot read. A schedule that
/// reads well may still be wrong: call validate().
Schedule from_csv(std::string_view csv, std::string name);

}  // namespace sluice
