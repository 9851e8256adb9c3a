// Tokens per second and activation memory of configurations side by side, in turns: by default 1F1B
// whole and SlimPipe in slices. Example: slice_speed --runs 1f1b slimpipe/8 slimpipe/8/balanced
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "sluice/common/errors.h"

namespace sluice::bench {
namespace {

struct Options : TurnSizes {
  Options() {
    microbatches = 4;
    length = 4096;
  }
  std::vector<std::string> runs = {"1f1b", "slimpipe/8", "slimpipe/8/balanced"};
  std::string costs_path;  // empty: not written
};

/// "schedule[/slices[/exchange]]".
RunConfig config_of(const Options& options, const std::string& run) {
  RunConfig config = options.config(options.length);
  const std::vector<std::string> parts = parts_of(run);
  config.pipeline.schedule = parts[0];
  if (parts.size() > 1) config.pipeline.slices = std::stoi(parts[1]);
  if (parts.size() > 2) config.pipeline.exchange = parts[2];
  return config;
}

struct Run {
  std::string name;
  std::unique_ptr<StepRunner> runner;
  std::vector<double> seconds;
  double bubble = 0.0;  // of the last step
};

/// Idle share of ranks times makespan; passes that wait for exchanged attention count as busy.
double measured_bubble(const Timeline& timeline) {
  std::int64_t first = timeline.end(), last = timeline.begin();
  double busy = 0.0;
  for (const auto& spans : timeline.ranks) {
    for (const Span& span : spans) {
      if (span.kind != ActionKind::kPass) continue;
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
      busy += static_cast<double>(span.end - span.begin);
    }
  }
  return 1.0 -
         busy / (static_cast<double>(last - first) * static_cast<double>(timeline.ranks.size()));
}

/// What each slice of a microbatch takes on rank 0, all its stages, in the form of `sluice simulate
/// --costs`. REQUIRES: backward is not split.
std::string slice_costs(const StepRunner& runner) {
  const RunPlan& plan = runner.plan();
  const CostModel cost = measured_costs(runner.timeline(), plan.program);
  const auto times = [&](PassKind kind) {
    std::vector<double> slices;
    for (int slice = 0; slice < cost.num_slices; ++slice) {
      std::int64_t ticks = 0;
      for (const int stage : plan.schedule.placement.stages_of(0)) {
        ticks += cost.duration({kind, static_cast<std::int32_t>(stage), 0, slice});
      }
      slices.push_back(1e3 * cost.unit_per_tick * static_cast<double>(ticks));
    }
    return slices;
  };
  return fmt::format(
      "{{\"unit\": \"ms\", \"forward_slices\": [{:.3f}], \"backward_slices\": [{:.3f}]}}\n",
      fmt::join(times(PassKind::kForward), ", "), fmt::join(times(PassKind::kBackward), ", "));
}

void run(const Options& options) {
  std::vector<Run> runs;
  for (const std::string& name : options.runs) {
    runs.push_back({name, std::make_unique<StepRunner>(config_of(options, name)), {}, 0.0});
  }
  take_turns(runs, options.steps, [](Run& each, double seconds) {
    each.seconds.push_back(seconds);
    each.bubble = measured_bubble(each.runner->timeline());
  });
  const double tokens = static_cast<double>(options.length * options.microbatches);
  const double base_seconds = median(runs.front().seconds);
  const auto base_peak = static_cast<double>(runs.front().runner->activation_peak());
  fmt::print(
      "# Slices: speed and memory\n\n{} ranks, hidden {}, {} layers, sequence {}, {} microbatches "
      "of one sequence, fp32; median of {} steps in turns.\n\n"
      "| run | tokens/s | ratio | activations, MiB | ratio | bubble | predicted bubble |\n"
      "|---|---|---|---|---|---|---|\n",
      options.ranks, options.hidden, options.layers, options.length, options.microbatches,
      options.steps);
  for (const Run& each : runs) {
    const double seconds = median(each.seconds);
    const auto peak = static_cast<double>(each.runner->activation_peak());
    const RunPlan& plan = each.runner->plan();
    const Simulation again =
        simulate(plan.program, measured_costs(each.runner->timeline(), plan.program), {});
    fmt::print("| {} | {:.0f} | {:.3f} | {:.1f} | {:.3f} | {:.3f} | {:.3f} |\n", each.name,
               tokens / seconds, base_seconds / seconds, peak / (1 << 20), peak / base_peak,
               each.bubble, again.bubble.bubble_fraction);
  }
  if (options.costs_path.empty()) return;
  std::ofstream file(options.costs_path);
  file << slice_costs(*runs.back().runner);
  if (!file.flush()) throw Failure(fmt::format("{} cannot be written", options.costs_path));
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Options options;
  CLI::App app("Speed and activation memory of schedules with and without slices.");
  app.add_option("--runs", options.runs, "SCHEDULE[/SLICES[/EXCHANGE]]; the first is the base");
  app.add_option("--costs", options.costs_path,
                 "file for what each slice of the last run takes on rank 0, for sluice simulate");
  options.add_to(app);
  return sluice::bench::run_program(app, argc, argv, [&] { sluice::bench::run(options); });
}
