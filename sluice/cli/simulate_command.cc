#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sluice/cli/commands.h"
#include "sluice/cli/files.h"
#include "sluice/cli/numbers.h"
#include "sluice/cli/options.h"
#include "sluice/cli/output.h"
#include "sluice/cli/table.h"
#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/text.h"
#include "sluice/sim/exchange_cost.h"
#include "sluice/sim/simulate.h"
#include "sluice/trace/chrome.h"
#include "sluice/trace/grid.h"
#include "sluice/trace/svg.h"

namespace sluice::cli {
namespace {

struct Arguments {
  ScheduleOptions schedule;
  std::string format = "text";
  std::string trace_path;
  std::string svg_path;
};

/// A schedule with its prediction.
struct Prediction {
  ResolvedSchedule input;
  Simulation simulation;
  std::int64_t num_messages = 0;
  double exchanged_kv_slices = 0.0;           // by all forwards of the step
  double exchanged_kv_slices_pairwise = 0.0;  // what the published rule would exchange

  double units(std::int64_t ticks) const { return in_units(ticks, input.cost.unit_per_tick); }

  int num_chunks() const { return static_cast<int>(input.schedule.placement.stages_of(0).size()); }

  /// In units of the activations of one microbatch through the whole model.
  std::vector<double> peak_activations() const { return in_models(simulation.peak_saved); }
  std::vector<double> peak_offloaded() const { return in_models(simulation.peak_away); }

  std::vector<double> in_models(const std::vector<std::int64_t>& counts) const {
    const double whole_model =
        static_cast<double>(input.schedule.num_stages()) * input.schedule.num_slices;
    std::vector<double> result;
    for (const std::int64_t count : counts) {
      result.push_back(static_cast<double>(count) / whole_model);
    }
    return result;
  }
};

/// Puts the exchange into the program. Without knowing what attention costs there is none to level.
void add_exchange(Program& program, Prediction& prediction) {
  const CostModel& cost = prediction.input.cost;
  if (prediction.input.exchange == ExchangeMode::kNone || !cost.can_move_attention()) return;
  const ExchangeCosts costs = exchange_costs(cost);
  const auto plan = [&](ExchangeMode mode) {
    return plan_exchange(program, mode, costs, cost.link);
  };
  prediction.exchanged_kv_slices_pairwise = plan(ExchangeMode::kPairwise).num_forward_kv_slices();
  program.exchange = plan(prediction.input.exchange);
  prediction.exchanged_kv_slices = program.exchange.num_forward_kv_slices();
}

Prediction predict(const Arguments& arguments) {
  Prediction prediction;
  prediction.input = resolve(arguments.schedule);
  Program program = lower(prediction.input.schedule);
  add_exchange(program, prediction);
  const std::vector<Problem> problems = verify(program);
  SLUICE_CHECK(problems.empty(), "the program of {} has {} problems; the first: {}", program.name,
               problems.size(), problems.front().text);
  SimulateOptions options;
  options.record_timeline = !arguments.trace_path.empty() || !arguments.svg_path.empty() ||
                            (arguments.format == "text" && fits_picture(prediction.input.schedule));
  prediction.simulation = simulate(program, prediction.input.cost, options);
  prediction.simulation.timeline.seconds_per_tick =
      prediction.input.cost.unit_per_tick * prediction.input.seconds_per_unit;
  prediction.num_messages = program.num_messages();
  return prediction;
}

std::string show_json(const Prediction& prediction) {
  const Schedule& schedule = prediction.input.schedule;
  const BubbleReport& bubble = prediction.simulation.bubble;
  nlohmann::ordered_json result;
  result["schedule"] = schedule.name;
  result["ranks"] = schedule.num_ranks();
  result["chunks"] = prediction.num_chunks();
  result["microbatches"] = schedule.num_microbatches;
  result["slices"] = schedule.num_slices;
  result["passes"] = schedule.num_passes();
  result["makespan"] = prediction.units(bubble.makespan);
  result["work"] = prediction.units(bubble.work);
  result["bubble_fraction"] = bubble.bubble_fraction;
  result["span_bubble_fraction"] = bubble.span_bubble_fraction;
  result["peak_activations"] = prediction.peak_activations();
  result["peak_offloaded"] = prediction.peak_offloaded();
  result["p2p_messages"] = prediction.num_messages;
  result["exchanged_kv_slices"] = prediction.exchanged_kv_slices;
  if (prediction.input.exchange != ExchangeMode::kNone) {
    result["exchanged_kv_slices_pairwise"] = prediction.exchanged_kv_slices_pairwise;
  }
  return result.dump(2) + "\n";
}

/// Of every rank, or with many of them the highest and the lowest.
std::string show_peaks(const std::vector<double>& peaks) {
  if (peaks.size() > 16) {
    const auto low = std::min_element(peaks.begin(), peaks.end());
    const auto high = std::max_element(peaks.begin(), peaks.end());
    return fmt::format("{:.4g} on rank {} to {:.4g} on rank {}", *high, high - peaks.begin(), *low,
                       low - peaks.begin());
  }
  std::string text;
  for (const double peak : peaks) text += fmt::format("{}{:.4g}", text.empty() ? "" : " ", peak);
  return text;
}

std::vector<std::vector<std::string>> show_exchange(const Prediction& prediction) {
  if (prediction.input.exchange == ExchangeMode::kNone) return {};
  if (!prediction.input.cost.can_move_attention()) {
    return {{"exchange",
             "nothing: all slices cost alike unless --attention-ratio says what "
             "attention takes"}};
  }
  std::string text = fmt::format("{:g} slices of K/V lent by the forwards of one step",
                                 prediction.exchanged_kv_slices);
  if (prediction.input.exchange != ExchangeMode::kPairwise) {
    text += fmt::format(" ({:g} with pairwise)", prediction.exchanged_kv_slices_pairwise);
  }
  return {{"exchange", text}};
}

std::string show_text(const Arguments& arguments, const Prediction& prediction) {
  const Schedule& schedule = prediction.input.schedule;
  const BubbleReport& bubble = prediction.simulation.bubble;
  const TimeAxis& axis = prediction.input.axis;
  std::string text = show_settings(arguments.schedule, prediction.input);
  if (fits_picture(schedule)) {
    GridOptions grid = grid_options();
    grid.axis = axis;
    text += "\n" + draw_grid(prediction.simulation.timeline, grid);
  }
  std::vector<std::vector<std::string>> results = {
      {"passes", std::to_string(schedule.num_passes())},
      {"makespan", show_time(bubble.makespan, axis)},
      {"work", show_time(bubble.work, axis) + "  (the busiest rank)"},
      {"bubble", fmt::format("{:.2f} %  of all ranks' time until the last one ends",
                             100.0 * bubble.bubble_fraction)},
      {"span bubble", fmt::format("{:.2f} %  of the longest span of one rank",
                                  100.0 * bubble.span_bubble_fraction)},
      {"messages", std::to_string(prediction.num_messages)},
      {"activations", show_peaks(prediction.peak_activations())},
      {"", "(peak of each rank; 1 = one microbatch through the whole model)"},
  };
  for (std::vector<std::string>& row : show_exchange(prediction)) {
    results.insert(results.end() - 2, std::move(row));
  }
  if (has_offload(schedule))
    results.push_back({"offloaded", show_peaks(prediction.peak_offloaded())});
  text += "\n" + table(results);
  return text;
}

void run(const Arguments& arguments) {
  const Prediction prediction = predict(arguments);
  const Timeline& timeline = prediction.simulation.timeline;
  // Both are made before either is written, so that an error leaves no file behind.
  std::string svg;
  if (!arguments.svg_path.empty()) {
    SvgOptions options;
    options.axis = prediction.input.axis;
    options.bubble = prediction.simulation.bubble;
    options.caption = describe_sizes(prediction.input.schedule);
    svg = draw_svg(timeline, options);
  }
  if (!arguments.trace_path.empty()) write_output(arguments.trace_path, chrome_trace(timeline));
  if (!arguments.svg_path.empty()) write_output(arguments.svg_path, svg);
  if (arguments.format == "json") {
    print(show_json(prediction));
  } else if (arguments.format == "csv") {
    print(to_csv(prediction.input.schedule));
  } else {
    print(show_text(arguments, prediction));
  }
}

}  // namespace

void add_simulate(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "simulate", "Predict the time, bubble and memory of a pipeline schedule without running it.");
  const auto arguments = std::make_shared<Arguments>();
  add_schedule_options(*command, arguments->schedule, /*sizes_required=*/true);
  add_choice(*command, "--format", arguments->format, {"text", "json", "csv"},
             "what to print: a report, one JSON object, or the schedule with a row per rank")
      ->default_str("text")
      ->group("Output");
  command
      ->add_option("--trace", arguments->trace_path,
                   "write a Chrome trace for Perfetto; without a unit, 1 is shown as 1 ms")
      ->type_name("FILE")
      ->group("Output");
  command->add_option("--svg", arguments->svg_path, "write the picture as SVG")
      ->type_name("FILE")
      ->group("Output");
  command->footer("sluice simulate zb-v --ranks 4 --microbatches 8 --svg zb-v.svg");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace sluice::cli
