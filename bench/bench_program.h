// bench_program.h - what the programs that train small models have in common: their sizes as
// options, runs that take turns, and how they end.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "bench/step_runner.h"
#include "sluice/common/errors.h"

namespace sluice::bench {

/// The model and the pipeline of a benchmark.
struct Sizes {
  int ranks = 2, microbatches = 8;
  std::int64_t hidden = 512, layers = 8;

  void add_to(CLI::App& app) {
    app.add_option("--ranks", ranks)->capture_default_str();
    app.add_option("--microbatches", microbatches)->capture_default_str();
    app.add_option("--hidden", hidden)->capture_default_str();
    app.add_option("--layers", layers)->capture_default_str();
  }

  /// A Llama of heads of 64 on sequences of random bytes, one to a microbatch; the rest of the
  /// pipeline is as in a RunConfig nobody changed, layers spread evenly.
  RunConfig config(std::int64_t length) const {
    RunConfig config;
    config.model.vocab_size = 256;
    config.model.hidden_size = hidden;
    config.model.intermediate_size = hidden * 11 / 4;
    config.model.num_hidden_layers = layers;
    config.model.num_attention_heads = hidden / 64;
    config.model.num_key_value_heads = hidden / 64;
    config.data.paths = {"random"};
    config.data.sequence_length = length;
    config.pipeline.layers = "uniform";
    config.pipeline.microbatch_size = 1;
    config.pipeline.ranks = ranks;
    config.pipeline.microbatches = microbatches;
    return config;
  }
};

/// Sizes, sequence and steps of runs side by side.
struct TurnSizes : Sizes {
  std::int64_t length = 512;
  int steps = 3;

  void add_to(CLI::App& app) {
    Sizes::add_to(app);
    app.add_option("--length", length, "tokens of a sequence")->capture_default_str();
    app.add_option("--steps", steps, "measured steps of each run")->capture_default_str();
  }
};

/// Trains a step of every run after the other, `steps` times after a first round that warms up, so
/// that what else happens on the machine meets all of them; every round begins with another run.
/// `measured(run, seconds)` is told of every step that counts.
template <typename Run, typename Measured>
void take_turns(std::vector<Run>& runs, int steps, Measured measured) {
  for (int step = 0; step <= steps; ++step) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      Run& each = runs[(i + static_cast<std::size_t>(step)) % runs.size()];
      const double seconds = each.runner->train(1).front();
      if (step > 0) measured(each, seconds);
    }
  }
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// "a/b/c" as a, b and c.
inline std::vector<std::string> parts_of(const std::string& run) {
  std::vector<std::string> parts;
  std::istringstream text(run);
  for (std::string part; std::getline(text, part, '/');) parts.push_back(part);
  return parts;
}

/// Parses the command line and runs; what a benchmark cannot do is one line and exit code 1.
inline int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  CLI11_PARSE(app, argc, argv);
  try {
    run();
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace sluice::bench
