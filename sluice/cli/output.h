// output.h - what commands print, and where.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "sluice/cli/options.h"
#include "sluice/schedule/schedule.h"
#include "sluice/trace/grid.h"

namespace sluice::cli {

enum class ExitCode { kDone = 0, kFailed = 1, kWrongUse = 2, kPeerLost = 3 };

/// Prints a message as one line on standard error, whatever it holds, and returns `code`.
int report(ExitCode code, std::string message);

/// report() of an error with the code of its kind.
int report_error(const std::exception_ptr& error);

/// Prints to standard output. Throws: Failure when it cannot be written (a full disk).
void print(std::string_view text);

/// Columns and colours that suit standard output: of the terminal, or 128 and none. NO_COLOR turns
/// the colours off.
GridOptions grid_options();

/// Whether a text picture of the schedule is worth its lines.
bool fits_picture(const Schedule& schedule);

/// "4 ranks, 2 chunks, 8 microbatches"; chunks and slices only where there are several.
std::string describe_sizes(const Schedule& schedule);

/// The resolved settings as a table.
std::string show_settings(const ScheduleOptions& options, const ResolvedSchedule& resolved);

}  // namespace sluice::cli
