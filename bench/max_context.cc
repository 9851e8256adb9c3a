// The longest sequence that each schedule trains when every rank has a fixed number of bytes: found
// from the predicted peak, then confirmed by training a step of it, and by the next longer one
// running out of memory. Example: max_context --schedules 1f1b slimpipe
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice::bench {
namespace {

struct Options : Sizes {
  Options() {
    ranks = 8;
    microbatches = 16;
    hidden = 256;
    layers = 16;
  }
  std::vector<std::string> schedules;  // SCHEDULE[/OFFLOAD[/VOCAB]]
  std::int64_t cap_mib = 96;
  int slices = 32;
  std::int64_t step = 16;  // granularity of lengths, and no less than one token per slice

  std::int64_t cap() const { return cap_mib << 20; }
};

RunConfig config_of(const Options& options, const std::string& run, int slices,
                    std::int64_t length) {
  RunConfig config = options.config(length);
  const std::vector<std::string> parts = parts_of(run);
  config.pipeline.schedule = parts[0];
  if (parts.size() > 1) config.pipeline.offload = parts[1];
  if (parts.size() > 2) config.pipeline.vocab = parts[2];
  config.pipeline.slices = slices;
  return config;
}

std::int64_t predicted_peak(const Options& options, const std::string& schedule, int slices,
                            std::int64_t length) {
  std::int64_t peak = 0;
  for (const MemoryPeaks& rank :
       make_plan(config_of(options, schedule, slices, length), 5e10).prediction.memory) {
    peak = std::max(peak, rank.total);
  }
  return peak;
}

/// Trains one step under the cap; the seconds it took, or nothing when a rank ran out of memory.
std::optional<double> try_length(const Options& options, const std::string& schedule, int slices,
                                 std::int64_t length) {
  StepRunner runner(config_of(options, schedule, slices, length));
  for (const auto& rank : runner.ranks()) {
    if (rank->ledger().peaks().total > options.cap()) return std::nullopt;
    rank->ledger().set_limit(options.cap());
  }
  try {
    return runner.train(1).front();
  } catch (const OutOfDeviceMemory&) {
    return std::nullopt;
  }
}

struct Longest {
  std::string schedule;
  int slices = 1;
  std::int64_t predicted = 0, trained = 0, refused = 0;
  double seconds = 0.0;
};

Longest find_longest(const Options& options, const std::string& schedule, int slices) {
  const std::int64_t step = std::max<std::int64_t>(options.step, slices);
  Longest result{.schedule = schedule, .slices = slices};
  const auto fits = [&](std::int64_t length) {
    return predicted_peak(options, schedule, slices, length) <= options.cap();
  };
  std::int64_t low = 0, high = 1;  // in steps: fits, does not
  while (fits(high * step)) low = std::exchange(high, 2 * high);
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle * step) ? low : high) = middle;
  }
  result.predicted = low * step;
  for (std::int64_t length = result.predicted; length > 0; length -= step) {
    if (const auto seconds = try_length(options, schedule, slices, length)) {
      result.trained = length;
      result.seconds = *seconds;
      break;
    }
    result.refused = length;
  }
  while (result.refused == 0) {
    const std::int64_t longer = result.trained + step;
    if (const auto seconds = try_length(options, schedule, slices, longer)) {
      result.trained = longer;
      result.seconds = *seconds;
    } else {
      result.refused = longer;
    }
  }
  return result;
}

void report(const Options& options, const std::vector<Longest>& rows) {
  fmt::print(
      "# Longest trained sequence\n\n{} ranks, {} MiB each, hidden {}, {} layers, {} microbatches "
      "of one sequence, fp32, no recompute.\n`trained` was run; a sequence of `refused` tokens ran "
      "out of memory.\n\n| schedule | slices | trained | refused | predicted | seconds per step |\n"
      "|---|---|---|---|---|---|\n",
      options.ranks, options.cap_mib, options.hidden, options.layers, options.microbatches);
  for (const Longest& row : rows) {
    fmt::print("| {} | {} | {} | {} | {} | {:.1f} |\n", row.schedule, row.slices, row.trained,
               row.refused, row.predicted, row.seconds);
  }
  const auto find = [&](const std::string& name) {
    return std::find_if(rows.begin(), rows.end(),
                        [&](const Longest& row) { return row.schedule == name; });
  };
  fmt::print("\n");
  for (const char* name : {"1f1b", "interleaved"}) {
    const auto base = find(name), slim = find("slimpipe");
    if (base == rows.end() || slim == rows.end()) continue;
    fmt::print("slimpipe trains {:.2f} times the sequence of {}\n",
               static_cast<double>(slim->trained) / static_cast<double>(base->trained), name);
  }
}

void run(Options options) {
  if (options.schedules.empty()) {
    for (const ScheduleInfo& info : schedule_library()) options.schedules.push_back(info.name);
  }
  std::vector<Longest> rows;
  for (const std::string& schedule : options.schedules) {
    const int slices = find_schedule(parts_of(schedule)[0]).slices_itself ? options.slices : 1;
    try {
      rows.push_back(find_longest(options, schedule, slices));
    } catch (const InvalidArgument& error) {  // sizes that a schedule does not take
      fmt::print(stderr, "{}: {}\n", schedule, error.what());
      continue;
    }
    fmt::print(stderr, "{}: {} tokens, {:.1f} s\n", schedule, rows.back().trained,
               rows.back().seconds);
  }
  report(options, rows);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Options options;
  CLI::App app("Longest sequence that each schedule trains in a fixed number of bytes per rank.");
  app.add_option("--schedules", options.schedules,
                 "SCHEDULE[/OFFLOAD[/VOCAB]] to try; all schedules by default");
  app.add_option("--cap", options.cap_mib, "MiB of every rank")->capture_default_str();
  app.add_option("--slices", options.slices, "of schedules that know slices")
      ->capture_default_str();
  app.add_option("--step", options.step, "granularity of lengths, in tokens")
      ->capture_default_str();
  options.add_to(app);
  return sluice::bench::run_program(app, argc, argv, [&] { sluice::bench::run(options); });
}
