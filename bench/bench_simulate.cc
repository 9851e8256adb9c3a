// bench_simulate - passes per second of each step from a schedule's name to its predicted time.
//
//   build/bench/bench_simulate                  all sizes; items_per_second counts passes
//   build/bench/bench_simulate --benchmark_filter=EndToEnd
//
// Each benchmark checks its result once against the closed form of interleaved 1F1B at equal pass
// times before it is timed: m * 3 + (p - 1) * 3 / v.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <stdexcept>

#include "sluice/program/lower.h"
#include "sluice/program/verify.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/simulate.h"

namespace {

using sluice::CostModel;
using sluice::Program;
using sluice::Schedule;
using sluice::Simulation;

Schedule generate(const benchmark::State& state) {
  return sluice::make_schedule("interleaved", {.ranks = static_cast<int>(state.range(0)),
                                               .microbatches = static_cast<int>(state.range(2)),
                                               .chunks = static_cast<int>(state.range(1)),
                                               .ticks = {}});
}

void check(const benchmark::State& state, const Simulation& simulation, const CostModel& cost) {
  const std::int64_t chunk_pass = cost.ticks[0][0];
  const std::int64_t expected =
      chunk_pass * 3 * (state.range(2) * state.range(1) + state.range(0) - 1);
  if (simulation.bubble.makespan != expected) {
    throw std::runtime_error("the simulated makespan is not the closed form");
  }
}

void count_passes(benchmark::State& state, const Schedule& schedule) {
  state.SetItemsProcessed(state.iterations() * schedule.num_passes());
  state.counters["passes"] = static_cast<double>(schedule.num_passes());
}

void Generate(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(generate(state));
  count_passes(state, generate(state));
}

void Lower(benchmark::State& state) {
  const Schedule schedule = generate(state);
  for (auto _ : state) benchmark::DoNotOptimize(sluice::lower(schedule));
  count_passes(state, schedule);
}

void Verify(benchmark::State& state) {
  const Schedule schedule = generate(state);
  const Program program = sluice::lower(schedule);
  if (!sluice::verify(program).empty()) throw std::runtime_error("the program is not correct");
  for (auto _ : state) benchmark::DoNotOptimize(sluice::verify(program));
  count_passes(state, schedule);
}

void Simulate(benchmark::State& state) {
  const Schedule schedule = generate(state);
  const Program program = sluice::lower(schedule);
  const CostModel cost = sluice::cost_from_rank_times({}, schedule.placement, 1);
  check(state, sluice::simulate(program, cost), cost);
  for (auto _ : state) benchmark::DoNotOptimize(sluice::simulate(program, cost));
  count_passes(state, schedule);
}

void EndToEnd(benchmark::State& state) {
  for (auto _ : state) {
    const Schedule schedule = generate(state);
    const Program program = sluice::lower(schedule);
    if (!sluice::verify(program).empty()) throw std::runtime_error("the program is not correct");
    const CostModel cost = sluice::cost_from_rank_times({}, schedule.placement, 1);
    check(state, sluice::simulate(program, cost), cost);
  }
  count_passes(state, generate(state));
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"ranks", "chunks", "microbatches"});
  benchmark->Args({8, 2, 64});
  benchmark->Args({64, 5, 4096});
  benchmark->Unit(benchmark::kMillisecond);
}

BENCHMARK(Generate)->Apply(sizes);
BENCHMARK(Lower)->Apply(sizes);
BENCHMARK(Verify)->Apply(sizes);
BENCHMARK(Simulate)->Apply(sizes);
BENCHMARK(EndToEnd)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
