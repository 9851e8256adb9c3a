#include "sluice/train/pipeline_step.h"

#include <ATen/ops/cat.h>

#include <map>
#include <mutex>
#include <string>

#include "sluice/runtime/rank_thread.h"

namespace sluice {
namespace {

/// Of every parameter its tensors by first row: one, or the shards of a vocabulary matrix.
using Shards = std::map<std::string, std::map<std::int64_t, at::Tensor>>;

at::Tensor join(const std::map<std::int64_t, at::Tensor>& shards) {
  if (shards.size() == 1) return shards.begin()->second;
  std::vector<at::Tensor> rows;
  for (const auto& [first, tensor] : shards) rows.push_back(tensor);
  return at::cat(rows);
}

}  // namespace

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
                              const StepBatch& batch, bool keep_probabilities) {
  StepOutcome outcome;
  Shards gradients;
  std::mutex mutex;
  run_ranks(transports, [&](Transport& transport) {
    RankModel& model = *ranks[static_cast<std::size_t>(transport.rank())];
    model.spread_tied(transport);
    Engine engine(program, model.stages(), transport, model.ledger(), {},
                  {.layers = model.vocabulary(), .keep_probabilities = keep_probabilities});
    auto losses = engine.run(batch, [&](const std::vector<LossSum>&) {
      model.sum_tied_gradients(transport);
      transport.barrier();
    });
    const std::lock_guard lock(mutex);
    if (!losses.empty()) outcome.losses = std::move(losses);
    for (const TrainedParameter& trained : model.trained()) {
      const ParameterSpec& spec = trained.parameter->spec;
      gradients[spec.name][spec.first_row] = trained.parameter->gradient.clone();
    }
    model.zero_gradients();
  });
  for (const auto& [name, shards] : gradients) outcome.gradients[name] = join(shards);
  return outcome;
}

NamedTensors copy_weights(const std::vector<std::unique_ptr<RankModel>>& ranks) {
  Shards shards;
  for (const auto& rank : ranks) {
    for (const TrainedParameter& trained : rank->trained()) {
      const ParameterSpec& spec = trained.parameter->spec;
      shards[spec.name][spec.first_row] = trained.parameter->value.clone();
    }
  }
  NamedTensors weights;
  for (const auto& [name, rows] : shards) weights[name] = join(rows);
  return weights;
}

}  // namespace sluice
