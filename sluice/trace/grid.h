// grid.h - a Timeline as a text picture: one row per rank, time from left to right.
#pragma once

#include <optional>
#include <string>

#include "sluice/schedule/schedule.h"
#include "sluice/trace/axis.h"
#include "sluice/trace/timeline.h"

namespace sluice {

struct GridOptions {
  int max_columns = 100;         // of a line, with the name of its rank
  bool colour = false;           // ANSI colours by kind, lighter by chunk
  std::optional<TimeAxis> axis;  // default: real_time_axis(timeline)
};

/// Draws the compute lanes. A pass is as wide as it is long and begins with its letter and
/// microbatch, "F3" (".2" for slice 2 when there are several), after its stage when ranks hold more
/// than one, "5F3"; dots are idle time. With less room it leaves out first the stages (the second
/// chunk is then in lower case) and the gaps between passes, then the microbatches where there are
/// slices ("F2" is slice 2), then all but the letters; a timeline
/// too long for that shows its beginning and its end. Below stand the times and a legend; with
/// slices also how many of them the first rank keeps for their backward. Every line ends with a
/// newline. An empty timeline gives an empty string.
std::string draw_grid(const Timeline& timeline, const GridOptions& options = {});

/// Draws a schedule that has no times: every pass takes one unit, a full backward two, messages
/// none, and each starts as early as its rank's order and its inputs allow.
/// REQUIRES: validate(schedule) is empty. Throws: InternalError when it is not.
std::string draw_grid(const Schedule& schedule, const GridOptions& options = {});

}  // namespace sluice
