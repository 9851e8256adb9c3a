// pipeline_step.h - one training step through a pipeline of threads, for checks against the unsplit
// model. Read next: model/reference.h.
#pragma once

#include <memory>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/model/reference.h"
#include "sluice/program/program.h"
#include "sluice/runtime/engine.h"
#include "sluice/train/rank_model.h"

namespace sluice {

/// One RankModel per rank of the placement, initialised by (seed, name).
std::vector<std::unique_ptr<RankModel>> make_rank_models(const ModelConfig& config,
                                                         const Layout& layout,
                                                         const Placement& placement,
                                                         at::Device device, std::uint64_t seed);

/// What came out of a step before any update.
struct StepOutcome {
  std::vector<LossSum> losses;  // per (microbatch, slice)
  NamedTensors gradients;       // copies; a tied output layer's is added to the embedding's
};

/// Runs `program` once over `ranks` and copies the gradients; the gradients are zero again
/// afterwards and the weights unchanged. `batch` holds tokens and targets of every microbatch.
/// Throws: what a rank threw first.
StepOutcome run_pipeline_step(const Program& program,
                              const std::vector<std::unique_ptr<RankModel>>& ranks,
                              const std::vector<std::unique_ptr<Transport>>& transports,
                              const StepBatch& batch, bool keep_probabilities = true);

/// Copies of all weights by name; a tied output layer is not among them.
NamedTensors copy_weights(const std::vector<std::unique_ptr<RankModel>>& ranks);

}  // namespace sluice
