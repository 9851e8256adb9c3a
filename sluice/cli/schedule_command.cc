#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/cli/commands.h"
#include "sluice/cli/files.h"
#include "sluice/cli/numbers.h"
#include "sluice/cli/options.h"
#include "sluice/cli/output.h"
#include "sluice/cli/table.h"
#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/registry.h"
#include "sluice/schedule/text.h"
#include "sluice/sim/simulate.h"
#include "sluice/trace/grid.h"

namespace sluice::cli {
namespace {

using nlohmann::ordered_json;

std::string list_as_json() {
  ordered_json list = ordered_json::array();
  for (const ScheduleInfo& info : schedule_library()) {
    list.push_back({{"name", info.name},
                    {"summary", info.summary},
                    {"source", info.source},
                    {"bubble", info.bubble_formula},
                    {"memory", info.memory_formula},
                    {"rules", info.rules},
                    {"default_chunks", info.default_chunks}});
  }
  return list.dump(2) + "\n";
}

std::string list_as_text() {
  std::vector<std::vector<std::string>> rows = {
      {"schedule", "chunks", "extra time (bubble)", "peak activations", "sizes"}};
  for (const ScheduleInfo& info : schedule_library()) {
    rows.push_back({info.name, std::to_string(info.default_chunks), info.bubble_formula,
                    info.memory_formula, info.rules});
  }
  std::string text = table(rows);
  text +=
      "\np ranks, m microbatches, v chunks (stages on a rank), g microbatch group; F, B, I, W: "
      "time "
      "of forward, full\nbackward, backward for the input and for the weights of one microbatch on "
      "one rank. Activations of one\nmicrobatch through the whole model are 1.\n\n";
  rows.clear();
  for (const ScheduleInfo& info : schedule_library()) {
    rows.push_back({info.name, fmt::format("{} ({})", info.summary, info.source)});
  }
  return text + table(rows);
}

std::vector<std::vector<std::string>> passes_as_text(const Schedule& schedule) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& passes : schedule.ranks) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Pass& pass : passes) row.push_back(to_string(pass, schedule.num_slices > 1));
  }
  return rows;
}

ordered_json sizes_as_json(const Schedule& schedule) {
  ordered_json sizes;
  sizes["schedule"] = schedule.name;
  sizes["ranks"] = schedule.num_ranks();
  sizes["stages"] = schedule.num_stages();
  sizes["microbatches"] = schedule.num_microbatches;
  sizes["slices"] = schedule.num_slices;
  sizes["passes"] = schedule.num_passes();
  return sizes;
}

void show(const ScheduleOptions& options, const std::string& format) {
  const ResolvedSchedule resolved = resolve(options);
  const Schedule& schedule = resolved.schedule;
  if (format == "csv") return print(to_csv(schedule));
  if (format == "json") {
    ordered_json result = sizes_as_json(schedule);
    std::vector<int> rank_of_stage;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      rank_of_stage.push_back(schedule.placement.rank_of(stage));
    }
    result["rank_of_stage"] = rank_of_stage;
    result["order"] = passes_as_text(schedule);
    return print(result.dump() + "\n");
  }
  const Simulation simulation = simulate(lower(schedule), resolved.cost, {.record_timeline = true});
  GridOptions grid = grid_options();
  grid.axis = resolved.axis;
  print(fmt::format("{}: {}\n\n{}", options.name, describe_sizes(schedule),
                    draw_grid(simulation.timeline, grid)));
}

/// What is wrong with a schedule that was read; what validate() passes, the verifier must pass too.
std::vector<Problem> find_problems(const Schedule& schedule) {
  std::vector<Problem> problems = validate(schedule);
  return problems.empty() ? verify(lower(schedule)) : problems;
}

ordered_json check_as_json(const Schedule& schedule, const std::vector<Problem>& problems) {
  ordered_json result = sizes_as_json(schedule);
  result["pass"] = problems.empty();
  result["problems"] = ordered_json::array();
  for (const Problem& problem : problems) {
    ordered_json entry;
    entry["rank"] = problem.rank;
    entry["position"] = problem.position;
    entry["text"] = problem.text;
    result["problems"].push_back(std::move(entry));
  }
  return result;
}

void check(const std::string& path, const std::string& format) {
  const std::string csv = read_input(path);
  Schedule schedule;
  try {
    schedule = from_csv(csv, path);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
  const std::vector<Problem> problems = find_problems(schedule);
  if (format == "json") {
    print(check_as_json(schedule, problems)
              .dump(2, ' ', false, ordered_json::error_handler_t::replace) +
          "\n");
  } else if (problems.empty()) {
    print(fmt::format("{}: {}, {} stages, {} passes: no problems\n", path, describe_sizes(schedule),
                      schedule.num_stages(), schedule.num_passes()));
    if (fits_picture(schedule)) print("\n" + draw_grid(schedule, grid_options()));
  } else {
    print(describe_problems(schedule, problems));
  }
  if (!problems.empty()) {
    throw Failure(fmt::format("{}: {} problem{}; the schedule cannot run", path, problems.size(),
                              problems.size() == 1 ? "" : "s"));
  }
}

void add_list(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("list", "List every schedule with its bubble, memory and rules on sizes.");
  const auto format = std::make_shared<std::string>("text");
  add_choice(*command, "--format", *format, {"text", "json"}, "a table, or a JSON array")
      ->default_str("text")
      ->group("Output");
  command->footer("sluice schedule list");
  command->callback([format] { print(*format == "json" ? list_as_json() : list_as_text()); });
}

void add_show(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("show", "Show a schedule as a picture, as CSV or as JSON.");
  const auto options = std::make_shared<ScheduleOptions>();
  const auto format = std::make_shared<std::string>("text");
  add_schedule_options(*command, *options, /*sizes_required=*/false);
  add_choice(*command, "--format", *format, {"text", "json", "csv"},
             "a picture, one JSON object, or CSV with a row per rank that PyTorch reads too")
      ->default_str("text")
      ->group("Output");
  command->footer("sluice schedule show zb-1p --ranks 4 --microbatches 8");
  command->callback([options, format] { show(*options, *format); });
}

void add_check(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("check", "Read a schedule from CSV and report everything wrong with it.");
  const auto path = std::make_shared<std::string>();
  const auto format = std::make_shared<std::string>("text");
  command->add_option("FILE", *path, "CSV with a row per rank and cells such as 2F0")
      ->required()
      ->group("Input");
  add_choice(*command, "--format", *format, {"text", "json"}, "a report, or one JSON object")
      ->default_str("text")
      ->group("Output");
  command->footer(
      "sluice schedule show gis --format csv > gis.csv && sluice schedule check gis.csv");
  command->callback([path, format] { check(*path, *format); });
}

}  // namespace

void add_schedule(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("schedule", "List the schedules, show one, or check one from a file.");
  command->require_subcommand(1);
  command->footer("sluice schedule show zb-1p --ranks 4 --microbatches 8");
  add_list(*command);
  add_show(*command);
  add_check(*command);
}

}  // namespace sluice::cli
