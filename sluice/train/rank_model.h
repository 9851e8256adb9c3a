// rank_model.h - the stages one rank trains, and the step from complete gradients to new weights.
// Read next: trainer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/model/layout.h"
#include "sluice/model/stage.h"
#include "sluice/model/vocab_layers.h"
#include "sluice/runtime/ledger.h"
#include "sluice/schedule/schedule.h"
#include "sluice/train/data_parallel.h"
#include "sluice/train/optimizer.h"

namespace sluice {

/// A parameter that this rank updates: the weight with its gradient, and the optimizer state of the
/// part that its shard owns. `order` is
/// its place in the whole model (embedding, layers, final norm, output layer), the same in every
/// layout; sums over parameters run in that order.
struct TrainedParameter {
  Parameter* parameter = nullptr;
  AdamState state;
  std::int64_t order = 0;
};

/// Whom a rank talks to. The ranks of a run are data x pipeline: rank number = data index *
/// pipeline ranks + rank in the pipeline.
struct RankLinks {
  Transport& world;     // all ranks of the run
  Transport& pipeline;  // the ranks of its pipeline
  Transport& replicas;  // the ranks with the same stages and other data; may be of size 1
};

/// What the ranks agree on after a step.
struct UpdateResult {
  double gradient_norm = 0.0;               // of the whole model, before clipping
  std::vector<std::vector<double>> shared;  // every rank's `share`, by rank
};

/// One rank's stages, their optimizer state and the ledger all of it is charged to.
/// Tied embeddings: the rank with the embedding owns the matrix. The output layer's gradient is a
/// sum of its own on every layout and is added once per step, so that all layouts add in one order;
/// on one rank the two share the value, on two the owner sends the new value back. Threads: used by
/// its rank's thread; the ledger may be read by any.
class RankModel {
 public:
  /// Allocates and initialises the stages of `rank` of a pipeline by (seed, parameter name), with
  /// the optimizer state of `shard`. A layout without embedding and output layer shards both over
  /// the ranks of the pipeline (Vocabulary Parallelism).
  RankModel(const ModelConfig& config, const Layout& layout, const Placement& placement, int rank,
            at::Device device, std::uint64_t seed, Shard shard = {});

  MemoryLedger& ledger() { return *ledger_; }
  const MemoryLedger& ledger() const { return *ledger_; }
  std::vector<Stage*> stages();
  /// This rank's shards of the vocabulary layers; null when they are on the first and last stage.
  VocabLayers* vocabulary() { return vocabulary_.get(); }
  /// All parameters of this rank, tied ones too.
  std::vector<Parameter*> parameters();
  /// The parameters this rank updates, in model order. A tied output layer is not among them.
  std::vector<TrainedParameter>& trained() { return trained_; }
  const Shard& shard() const { return shard_; }

  /// Sends the gradients of the rank's `chunk`-th stage to the replicas while backward goes on
  /// elsewhere; update() takes the sums. REQUIRES: they are complete. Tied matrices wait for
  /// update(). All replicas call it at the same place of their step.
  void begin_reduction(std::size_t chunk, Transport& replicas);

  /// Sums the gradients of tied parameters and those of the replicas, clips by the global norm
  /// (over all ranks, in model order), applies AdamW with `rate` to the rank's shard, gathers the
  /// other shards' values and zeroes the gradients. `share` travels with the norm and comes back
  /// from every rank of the world. All ranks call it together.
  UpdateResult update(const RankLinks& links, const AdamOptions& options, double learning_rate,
                      double gradient_clip, std::int64_t step, const std::vector<double>& share);

  /// The same for one pipeline without replicas.
  UpdateResult update(Transport& pipeline, const AdamOptions& options, double learning_rate,
                      double gradient_clip, std::int64_t step, const std::vector<double>& share);

  /// After weights were loaded: gives a tied output layer on another rank than the embedding the
  /// embedding's value. All ranks call it together.
  void spread_tied(Transport& transport);

  /// Adds a tied output layer's gradient to the embedding's. All ranks call it together, and meet
  /// at a collective before the output layer's gradient changes.
  void sum_tied_gradients(Transport& transport);

  void zero_gradients();

  /// After weights were loaded without optimizer state: fp32 masters start from the values.
  void reset_masters();

 private:
  /// Root of the sum of squares of all gradients, and every rank's share.
  UpdateResult share_norm(Transport& world, const std::vector<double>& share) const;
  std::vector<Parameter*> owned() const;

  bool tied_;
  Shard shard_;
  std::unique_ptr<MemoryLedger> ledger_;  // before the tensors it counts
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<VocabLayers> vocabulary_;
  std::vector<TrainedParameter> trained_;
  Parameter* embedding_ = nullptr;  // tied models: the owner's matrix, if here
  Parameter* tied_head_ = nullptr;  // tied models: the output layer's, if here
  int embedding_rank_ = 0;
  int head_rank_ = 0;
  int num_stages_ = 0;
  std::optional<GradientReduction> reduction_;  // of the step, once a stage has begun
};

}  // namespace sluice
