// options.h - the options that shape and time a schedule, shared by `simulate` and `schedule show`.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "sluice/schedule/schedule.h"
#include "sluice/sim/cost_model.h"
#include "sluice/trace/axis.h"

namespace sluice::cli {

/// What the user asked for, as given.
struct ScheduleOptions {
  std::string name;
  int ranks = 4;
  int microbatches = 8;
  int chunks = 0;  // 0: the schedule's default
  int slices = 0;  // 0: the number of ranks for schedules made for slices, else 1
  int group = 0;   // 0: the schedule's default
  std::string times = "1,1,1";
  std::string costs_path;
  std::optional<double> message;  // --p2p
  std::optional<double> attention_ratio;
  std::string exchange = "none";
  // Techniques. Their values are checked here and refused until they are built.
  std::string vocab = "last";
  std::string offload;  // empty: as the schedule has it
  double offload_ratio = 1.0;
};

/// What a request comes to: a schedule, what its passes cost, and how its times are shown.
struct ResolvedSchedule {
  Schedule schedule;
  CostModel cost;
  ExchangeMode exchange = ExchangeMode::kNone;
  TimeAxis axis;
  double seconds_per_unit = 1e-3;  // without a unit, one unit of --times is a millisecond in traces
  std::string times;               // in words, for the table of settings
};

/// Adds the positional SCHEDULE and all options of ScheduleOptions, in groups. Sizes are required
/// where `sizes_required`, else they have defaults. `options` outlives the parse.
void add_schedule_options(CLI::App& app, ScheduleOptions& options, bool sizes_required);

/// Reads the costs, generates the schedule with them in view, and gives both.
/// Throws: InvalidArgument for an unknown or unbuilt schedule or technique, a value out of range,
/// or costs that do not fit the schedule.
ResolvedSchedule resolve(const ScheduleOptions& options);

}  // namespace sluice::cli
