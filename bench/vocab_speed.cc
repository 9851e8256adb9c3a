// Tokens per second, and what differs between ranks, of vocabulary layers on the last stage and
// sharded over all ranks, in turns. Example: vocab_speed --runs last/uniform last/auto parallel-2
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "sluice/common/errors.h"

namespace sluice::bench {
namespace {

struct Options : TurnSizes {
  std::vector<std::string> runs = {"last/uniform", "last/auto", "parallel-2/uniform"};
  std::string schedule = "1f1b", keep = "auto";
  std::int64_t vocabulary = 32000;
};

/// "vocab[/layers]".
RunConfig config_of(const Options& options, const std::string& run) {
  RunConfig config = options.config(options.length);
  config.model.vocab_size = options.vocabulary;
  const std::vector<std::string> parts = parts_of(run);
  config.pipeline.vocab = parts[0];
  if (parts.size() > 1) config.pipeline.layers = parts[1];
  config.pipeline.vocab_keep = options.keep;
  config.pipeline.schedule = options.schedule;
  return config;
}

struct Run {
  std::string name;
  std::unique_ptr<StepRunner> runner;
  double seconds = 1e9;  // the fastest step
};

struct Spread {
  double least = 0.0, most = 0.0, mean = 0.0;
};

Spread spread_of(const std::vector<double>& values) {
  Spread spread{.least = *std::min_element(values.begin(), values.end()),
                .most = *std::max_element(values.begin(), values.end()),
                .mean = 0.0};
  for (const double value : values) spread.mean += value / static_cast<double>(values.size());
  return spread;
}

/// Largest over smallest rank, in percent more.
double excess(const Spread& spread) { return 100.0 * (spread.most / spread.least - 1.0); }

std::vector<double> bytes_of(const StepRunner& runner, bool parameters_only) {
  std::vector<double> bytes;
  for (const auto& rank : runner.ranks()) {
    const MemoryPeaks peaks = rank->ledger().peaks();
    double sum = 0.0;
    for (const MemoryClass each :
         {MemoryClass::kWeights, MemoryClass::kGradients, MemoryClass::kOptimizer}) {
      sum += static_cast<double>(peaks.by_class[static_cast<std::size_t>(each)]);
    }
    bytes.push_back(parameters_only ? sum : static_cast<double>(peaks.total));
  }
  return bytes;
}

void run(const Options& options) {
  std::vector<Run> runs;
  for (const std::string& name : options.runs) {
    runs.push_back({name, std::make_unique<StepRunner>(config_of(options, name))});
  }
  take_turns(runs, options.steps,
             [](Run& each, double seconds) { each.seconds = std::min(each.seconds, seconds); });
  const double tokens = static_cast<double>(options.length * options.microbatches);
  fmt::print(
      "{} ranks, {}, hidden {}, {} layers, sequence {}, vocabulary {}, {} microbatches of one "
      "sequence, fp32; fastest of {} steps in turns.\n\n"
      "| run | layers | tokens/s | ratio | predicted | processor time of each rank, s | busiest "
      "over mean | "
      "weights, gradients, optimizer: most over least | all bytes: most over least | peak MiB |\n"
      "|---|---|---:|---:|---:|---|---:|---:|---:|---:|\n",
      options.ranks, options.schedule, options.hidden, options.layers, options.length,
      options.vocabulary, options.microbatches, options.steps);
  const double base = static_cast<double>(runs.front().runner->plan().prediction.bubble.makespan);
  for (const Run& each : runs) {
    const RunPlan& plan = each.runner->plan();
    std::string layers, processor;
    for (const StageLayers& stage : plan.layout) layers += fmt::format(" {}", stage.num_layers);
    const std::vector<double> seconds = each.runner->processor_seconds();
    for (const double value : seconds) processor += fmt::format(" {:.2f}", value);
    const Spread compute = spread_of(seconds);
    const Spread total = spread_of(bytes_of(*each.runner, false));
    fmt::print(
        "| {} |{} | {:.0f} | {:.3f} | {:.3f} |{} | +{:.1f} % | +{:.2f} % | +{:.1f} % | {:.0f} |\n",
        each.name, layers, tokens / each.seconds, runs.front().seconds / each.seconds,
        base / static_cast<double>(plan.prediction.bubble.makespan), processor,
        100.0 * (compute.most / compute.mean - 1.0),
        excess(spread_of(bytes_of(*each.runner, true))), excess(total), total.most / (1 << 20));
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Options options;
  CLI::App app("Speed and balance of vocabulary layers on the last stage and sharded.");
  app.add_option("--runs", options.runs, "VOCAB[/LAYERS]; the first is the base");
  app.add_option("--schedule", options.schedule)->capture_default_str();
  app.add_option("--vocabulary", options.vocabulary)->capture_default_str();
  app.add_option("--keep", options.keep, "pipeline.vocab_keep")->capture_default_str();
  options.add_to(app);
  return sluice::bench::run_program(app, argc, argv, [&] { sluice::bench::run(options); });
}
