// Tokens per second, and what differs between ranks, of vocabulary layers on the last stage and
// sharded over all ranks, in turns. Example: vocab_speed --runs last/uniform last/auto parallel-2
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/step_runner.h"
#include "sluice/common/errors.h"

namespace sluice::bench {
namespace {

struct Options {
  std::vector<std::string> runs = {"last/uniform", "last/auto", "parallel-2/uniform"};
  std::string schedule = "1f1b", keep = "auto";
  int ranks = 2, microbatches = 8, steps = 3;
  std::int64_t hidden = 512, layers = 8, length = 512, vocabulary = 32000;
};

/// "vocab[/layers]".
RunConfig config_of(const Options& options, const std::string& run) {
  RunConfig config = random_tokens_config(options.hidden, options.layers, options.length);
  config.model.vocab_size = options.vocabulary;
  const std::size_t slash = run.find('/');
  config.pipeline.vocab = run.substr(0, slash);
  if (slash != std::string::npos) config.pipeline.layers = run.substr(slash + 1);
  config.pipeline.vocab_keep = options.keep;
  config.pipeline.schedule = options.schedule;
  config.pipeline.ranks = options.ranks;
  config.pipeline.microbatches = options.microbatches;
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
  // In turns, so that what else happens on the machine meets all of them; the first round warms up.
  for (int step = 0; step <= options.steps; ++step) {
    for (Run& each : runs) {
      const double seconds = each.runner->train(1).front();
      if (step > 0) each.seconds = std::min(each.seconds, seconds);
    }
  }
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
  app.add_option("--ranks", options.ranks)->capture_default_str();
  app.add_option("--microbatches", options.microbatches)->capture_default_str();
  app.add_option("--hidden", options.hidden)->capture_default_str();
  app.add_option("--layers", options.layers)->capture_default_str();
  app.add_option("--length", options.length, "tokens of a sequence")->capture_default_str();
  app.add_option("--steps", options.steps, "measured steps of each run")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    sluice::bench::run(options);
  } catch (const sluice::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
