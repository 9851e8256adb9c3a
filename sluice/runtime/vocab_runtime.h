// vocab_runtime.h - runs the vocabulary passes and collectives of one rank: the Engine's other half
// under Vocabulary Parallelism. Read next: engine.h, model/vocab_shard.h, comm/collectives.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/comm/collectives.h"
#include "sluice/model/vocab_layers.h"
#include "sluice/program/program.h"
#include "sluice/runtime/ledger.h"

namespace sluice {

struct StepBatch;

/// How a rank runs its vocabulary passes.
struct VocabSetup {
  VocabLayers* layers = nullptr;   // not owned; null: the vocabulary is not sharded
  bool keep_probabilities = true;  // from S until T; else T computes them again
};

/// What the passes E, G, S and T of every microbatch and slice hold between them. Ids and targets
/// belong to the batch and are not counted; what waits for a later pass is charged to the class
/// vocabulary, and what was posted belongs to the transport until it is taken.
/// Ownership: keeps references to all arguments. Threads: the Engine's.
class VocabRuntime {
 public:
  VocabRuntime(const Program& program, const VocabSetup& setup, Transport& transport,
               MemoryLedger& ledger);
  ~VocabRuntime();

  /// Takes the batch's tokens and targets. Every rank needs both.
  void begin_step(const StepBatch& batch);

  /// E, G, S or T.
  void run_pass(const Pass& pass);

  /// Takes part in the collective; never waits.
  void post(const Action& action);

  // The ends of the pipeline.

  /// The input of the first stage, when E has run everywhere.
  at::Tensor take_embedding(const Pass& forward);
  /// The output of the final norm, until its broadcast is posted.
  void give_hidden(const Pass& forward, at::Tensor y_BTD);
  /// The gradient of that output, and the loss of its tokens.
  at::Tensor take_hidden_gradient(const Pass& backward, LossSum& loss);
  /// The gradient of the first stage's input, until its broadcast is posted.
  void give_embedding_gradient(const Pass& backward, at::Tensor dx_BTD);

  /// After the last action: waits for all that is still on its way. Fills `losses` where they have
  /// not been taken (validation), index microbatch * num_slices + slice.
  void finish(std::vector<LossSum>& losses);

  /// Whether nothing is left of the step.
  bool is_clean() const;

 private:
  struct Unit;

  Unit& unit(const Pass& pass);
  bool is_last_rank() const;
  const TokenLoss& loss_of(Unit& unit);
  void drop_loss(Unit& unit);
  void charge(const at::Tensor& tensor) const;
  Buffer hand_over(at::Tensor tensor) const;
  Buffer destination(std::int64_t rows, at::ScalarType type) const;
  std::vector<Buffer> embedding_destinations(const Unit& unit) const;
  std::vector<Buffer> statistics_destinations(const Unit& unit) const;
  std::vector<Buffer> gradient_destinations(const Unit& unit) const;

  const Program& program_;
  const VocabSetup setup_;
  Transport& transport_;
  MemoryLedger& ledger_;
  const KeepTensor keep_;
  Collectives collectives_;
  LossOptions options_;
  std::vector<Unit> units_;  // microbatch, slice
};

}  // namespace sluice
