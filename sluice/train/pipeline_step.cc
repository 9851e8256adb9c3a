#include "sluice/train/pipeline_step.h"

#include <mutex>

#include "sluice/runtime/rank_thread.h"

namespace sluice {

std::vector<std::unique_ptr<RankModel>> make_rank_models(const ModelConfig& config,
                                                         const Layout& layout,
                                                         const Placement& placement,
                                                         at::Device device, std::uint64_t seed) {
  std::vector<std::unique_ptr<RankModel>> ranks;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    ranks.push_back(std::make_unique<RankModel>(config, layout, placement, rank, device, seed));
  }
  return ranks;
}

StepOutcome run_pipeline_step(const Program& program,
                              const std::vector<std::unique_ptr<RankModel>>& ranks,
                              const std::vector<std::unique_ptr<Transport>>& transports,
                              const StepBatch& batch) {
  StepOutcome outcome;
  std::mutex mutex;
  run_ranks(transports, [&](Transport& transport) {
    RankModel& model = *ranks[static_cast<std::size_t>(transport.rank())];
    model.spread_tied(transport);
    Engine engine(program, model.stages(), transport, model.ledger());
    auto losses = engine.run(batch, [&](const std::vector<LossSum>&) {
      model.sum_tied_gradients(transport);
      transport.barrier();
    });
    const std::lock_guard lock(mutex);
    if (!losses.empty()) outcome.losses = std::move(losses);
    for (const TrainedParameter& trained : model.trained()) {
      outcome.gradients[trained.parameter->spec.name] = trained.parameter->gradient.clone();
    }
    model.zero_gradients();
  });
  return outcome;
}

NamedTensors copy_weights(const std::vector<std::unique_ptr<RankModel>>& ranks) {
  NamedTensors weights;
  for (const auto& rank : ranks) {
    for (const TrainedParameter& trained : rank->trained()) {
      weights[trained.parameter->spec.name] = trained.parameter->value.clone();
    }
  }
  return weights;
}

}  // namespace sluice
