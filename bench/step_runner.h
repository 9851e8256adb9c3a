// step_runner.h - training steps of one configuration on random tokens, for benchmarks.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/comm/local.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/rank_thread.h"
#include "sluice/train/pipeline_step.h"
#include "sluice/train/plan.h"

namespace sluice::bench {

/// The model of one configuration on rank threads, and what a step of it gives and takes.
class StepRunner {
 public:
  /// `flops_per_second` of one rank is only for schedules that plan with costs, `rates` for copies.
  explicit StepRunner(const RunConfig& config, double flops_per_second = 5e10,
                      const CopyRates& rates = {})
      : config_(config), plan_(make_plan(config, flops_per_second, rates)) {
    install_ledger_allocator();
    const RankThreadInit init;
    stores_ = make_far_stores(config.pipeline, plan_.program, movable_bytes(plan_.memory));
    copies_.resize(stores_.size());
    ranks_ = make_rank_models(config.model, plan_.layout, plan_.schedule.placement, at::kCPU, 1);
    auto generator = at::detail::createCPUGenerator(5);
    const std::int64_t length = config.data.sequence_length;
    for (int i = 0; i < config.pipeline.microbatches; ++i) {
      const at::Tensor ids =
          at::randint(0, config.model.vocab_size, {config.pipeline.microbatch_size, length + 1},
                      generator, at::kLong);
      batch_.tokens_BT.push_back(ids.narrow(1, 0, length).contiguous());
      batch_.targets_BT.push_back(ids.narrow(1, 1, length).contiguous());
    }
    steps_.assign(ranks_.size(), 0);
    batch_.loss.scale = 1.0 / static_cast<double>(config.global_batch() * length);
  }

  const RunPlan& plan() const { return plan_; }
  const std::vector<std::unique_ptr<RankModel>>& ranks() const { return ranks_; }
  /// Where each rank copies to; null: it copies nothing. May be replaced between calls of train().
  std::vector<std::unique_ptr<FarStore>>& stores() { return stores_; }
  /// What the copies of each rank took in the last call of train().
  const std::vector<CopyCounters>& copies() const { return copies_; }

  /// Trains `num_steps`; returns the seconds of each, as rank 0 saw them. Throws: what a rank
  /// threw.
  std::vector<double> train(int num_steps) {
    std::vector<double> seconds;
    const auto transports = make_local_transports(config_.pipeline.ranks);
    spans_.resize(ranks_.size());
    processor_seconds_.assign(ranks_.size(), 0.0);
    run_ranks(transports, [&](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      RankModel& model = *ranks_[rank];
      Engine engine(plan_.program, model.stages(), transport, model.ledger(),
                    {.store = stores_[rank].get()},
                    {.layers = model.vocabulary(), .keep_probabilities = plan_.keep_probabilities});
      const double processor_before = thread_seconds();
      for (int step = 0; step < num_steps; ++step) {
        const auto begin = std::chrono::steady_clock::now();
        engine.run(batch_, [&](const std::vector<LossSum>&) {
          model.update(transport, {}, 1e-4, 1.0, ++steps_[rank], {});
        });
        transport.barrier();
        if (rank == 0) {
          seconds.push_back(
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
      }
      processor_seconds_[rank] = thread_seconds() - processor_before;
      spans_[rank] = engine.spans();
      copies_[rank] = engine.copies();
    });
    return seconds;
  }

  /// What each rank's thread computed in the last call of train(); waiting is no part of it, nor
  /// are other programs.
  const std::vector<double>& processor_seconds() const { return processor_seconds_; }

  /// The last step as it ran.
  Timeline timeline() const {
    return {.name = plan_.schedule.name,
            .seconds_per_tick = 1e-9,
            .num_slices = plan_.program.num_slices,
            .num_stages = plan_.program.num_stages(),
            .ranks = spans_};
  }

  /// Largest over the ranks of what they held for activations, keys and values included.
  std::int64_t activation_peak() const {
    std::int64_t largest = 0;
    for (const auto& rank : ranks_) {
      const BytesByClass peaks = rank->ledger().peaks().by_class;
      largest = std::max(largest, peaks[static_cast<std::size_t>(MemoryClass::kActivations)] +
                                      peaks[static_cast<std::size_t>(MemoryClass::kKvCache)]);
    }
    return largest;
  }

 private:
  static double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  RunConfig config_;
  RunPlan plan_;
  std::vector<double> processor_seconds_;
  std::vector<std::unique_ptr<RankModel>> ranks_;
  std::vector<std::unique_ptr<FarStore>> stores_;
  std::vector<CopyCounters> copies_;
  StepBatch batch_;
  std::vector<std::vector<Span>> spans_;
  std::vector<std::int64_t> steps_;
};

}  // namespace sluice::bench
