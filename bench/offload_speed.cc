// What copying activations out costs a step, and what it saves: configurations side by side, in
// turns. Example: offload_speed --runs po po/half po/full --ratio 0.9
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bench_program.h"
#include "sluice/common/errors.h"

namespace sluice::bench {
namespace {

struct Options : TurnSizes {
  Options() { steps = 5; }
  std::vector<std::string> runs = {"po", "po/half", "po/full"};
  std::string tier = "host", folder = ".";
  int chunks = 2;
  double ratio = 0.0;  // k that the link is slowed down to; 0: as fast as it goes
};

/// "schedule[/offload]".
RunConfig config_of(const Options& options, const std::string& run) {
  RunConfig config = options.config(options.length);
  const std::vector<std::string> parts = parts_of(run);
  config.pipeline.schedule = parts[0];
  if (parts.size() > 1) config.pipeline.offload = parts[1];
  config.pipeline.offload_tier = options.tier;
  config.pipeline.offload_dir = options.folder;
  config.pipeline.chunks = options.chunks;
  return config;
}

/// A store that takes as long as a link of a given rate, without using a processor for it.
class SlowStore : public FarStore {
 public:
  SlowStore(std::unique_ptr<FarStore> store, double bytes_per_second)
      : store_(std::move(store)), bytes_per_second_(bytes_per_second) {}

  void write(std::size_t unit, const ConstParts& parts) override {
    const auto end = end_of(parts);
    store_->write(unit, parts);
    std::this_thread::sleep_until(end);
  }
  void read(std::size_t unit, const Parts& parts) override {
    const auto end = end_of(parts);
    store_->read(unit, parts);
    std::this_thread::sleep_until(end);
  }
  std::int64_t capacity() const override { return store_->capacity(); }

 private:
  template <typename List>
  std::chrono::steady_clock::time_point end_of(const List& parts) const {
    double num_bytes = 0.0;
    for (const auto& part : parts) num_bytes += static_cast<double>(part.size());
    return std::chrono::steady_clock::now() +
           std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * num_bytes / bytes_per_second_));
  }

  std::unique_ptr<FarStore> store_;
  const double bytes_per_second_;
};

/// FLOP/s of a rank from a step of the first configuration, and the rate that makes k the ratio: a
/// copy there and back takes `ratio` times the passes of what it carries.
struct Speeds {
  double flops_per_second = 5e10;
  CopyRates rates;
};

Speeds measure_speeds(const Options& options) {
  const RunConfig config = config_of(options, options.runs.front());
  StepRunner runner(config);
  runner.train(2);  // the last one counts
  const CostModel planned = runner.plan().cost;
  const CostModel measured = measured_costs(runner.timeline(), runner.plan().program);
  double planned_ticks = 0.0, measured_ticks = 0.0, num_bytes = 0.0;
  const std::vector<std::int64_t> bytes = movable_bytes(runner.plan().memory);
  for (std::int32_t stage = 0; stage < planned.num_stages; ++stage) {
    for (const PassKind kind : {PassKind::kForward, PassKind::kBackward}) {
      planned_ticks += static_cast<double>(planned.duration({kind, stage, 0, 0}));
      measured_ticks += static_cast<double>(measured.duration({kind, stage, 0, 0}));
    }
    num_bytes += static_cast<double>(bytes[static_cast<std::size_t>(stage)]);
  }
  Speeds speeds{.flops_per_second = 5e10 * planned_ticks / measured_ticks, .rates = {}};
  if (options.ratio > 0.0) {
    const double rate = 2.0 * num_bytes / (options.ratio * measured_ticks * 1e-9);
    speeds.rates = {.out = rate, .in = rate};
  } else {
    RunConfig copying = config;
    copying.pipeline.offload = "full";
    speeds.rates = measure_copy_rates(copying.pipeline, options.ranks);
  }
  return speeds;
}

double mebibytes(std::int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

/// High mark of this process's resident memory.
std::int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) << 10;
  }
  return 0;
}

struct Run {
  std::string name;
  std::unique_ptr<StepRunner> runner;
  std::vector<double> seconds;
  double copy_seconds = 0.0;  // of processors, all ranks, all measured steps
};

void run(const Options& options) {
  const Speeds speeds = measure_speeds(options);
  std::vector<Run> runs;
  for (const std::string& name : options.runs) {
    runs.push_back({name,
                    std::make_unique<StepRunner>(config_of(options, name), speeds.flops_per_second,
                                                 speeds.rates),
                    {},
                    0.0});
    if (options.ratio <= 0.0) continue;
    for (auto& store : runs.back().runner->stores()) {
      if (store) store = std::make_unique<SlowStore>(std::move(store), speeds.rates.out);
    }
  }
  take_turns(runs, options.steps, [](Run& each, double seconds) {
    each.seconds.push_back(seconds);
    for (const CopyCounters& copies : each.runner->copies()) {
      each.copy_seconds += copies.processor_seconds;
    }
  });
  fmt::print(
      "# Offload: what it costs and saves\n\n{} ranks, {} chunks, hidden {}, {} layers, sequence "
      "{}, {} microbatches of one sequence, fp32; tier {} at {:.2f} GB/s out and {:.2f} in a rank; "
      "least and median of {} steps in turns.\n\n"
      "| run | least s/step | ratio | median | ratio | median ratio of a round | simulated ratio | "
      "processor s of copies | peak of a rank, MiB | planned | all ranks | away "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
      options.ranks, options.chunks, options.hidden, options.layers, options.length,
      options.microbatches, options.tier, speeds.rates.out / 1e9, speeds.rates.in / 1e9,
      options.steps);
  double base_least = 0.0, base_median = 0.0, base_simulated = 0.0;
  for (Run& each : runs) {
    const double least = *std::min_element(each.seconds.begin(), each.seconds.end());
    const double middle = median(each.seconds);
    const Simulation& prediction = each.runner->plan().prediction;
    const auto simulated = static_cast<double>(prediction.bubble.makespan);
    if (base_least == 0.0) {
      base_least = least;
      base_median = middle;
      base_simulated = simulated;
    }
    std::int64_t peak = 0, planned = 0, sum = 0, away = 0;
    for (std::size_t rank = 0; rank < each.runner->ranks().size(); ++rank) {
      peak = std::max(peak, each.runner->ranks()[rank]->ledger().peaks().total);
      planned = std::max(planned, prediction.memory[rank].total);
      sum += each.runner->ranks()[rank]->ledger().peaks().total;
      away += each.runner->copies()[rank].peak_bytes_away;
    }
    // What slows the machine down for a while slows down a whole round.
    std::vector<double> of_round;
    for (std::size_t step = 0; step < each.seconds.size(); ++step) {
      of_round.push_back(each.seconds[step] / runs.front().seconds[step]);
    }
    fmt::print(
        "| {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.4f} | {:.3f} | {:.1f} | {:.1f} | "
        "{:.1f} | {:.1f} |\n",
        each.name, least, least / base_least, middle, middle / base_median, median(of_round),
        simulated / base_simulated, each.copy_seconds / options.steps, mebibytes(peak),
        mebibytes(planned), mebibytes(sum), mebibytes(away));
  }
  fmt::print("\nhigh mark of resident memory: {:.1f} MiB\n", mebibytes(peak_resident_bytes()));
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Options options;
  CLI::App app("What copying activations out costs a step and saves.");
  app.add_option("--runs", options.runs, "SCHEDULE[/OFFLOAD]; the first is the base");
  app.add_option("--tier", options.tier, "host or disk")->capture_default_str();
  app.add_option("--folder", options.folder, "of the disk tier")->capture_default_str();
  app.add_option("--ratio", options.ratio,
                 "slow the link down to this k; 0: as fast as the tier goes")
      ->capture_default_str();
  app.add_option("--chunks", options.chunks)->capture_default_str();
  options.add_to(app);
  return sluice::bench::run_program(app, argc, argv, [&] { sluice::bench::run(options); });
}
