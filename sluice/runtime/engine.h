// engine.h - runs one rank of a verified Program. Read next: train/trainer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/model/stage.h"
#include "sluice/program/program.h"
#include "sluice/runtime/activation_store.h"
#include "sluice/runtime/exchanger.h"
#include "sluice/runtime/ledger.h"
#include "sluice/runtime/messages.h"
#include "sluice/runtime/vocab_runtime.h"
#include "sluice/trace/timeline.h"

namespace sluice {

/// What a rank gets for one step: per microbatch the tokens (ranks with the embedding) and the
/// targets (ranks with the output layer), [B, T] int64; empty on ranks that need none.
struct StepBatch {
  std::vector<at::Tensor> tokens_BT;
  std::vector<at::Tensor> targets_BT;
  std::int64_t num_sequences = 0;  // B; needed without tokens where the transport copies
  std::int64_t num_tokens = 0;     // T
  LossOptions loss;
  /// Per microbatch, what the loss of each token counts, [B, T]; empty: 1. Only where the
  /// vocabulary is sharded. A sharded vocabulary needs tokens and targets on every rank.
  std::vector<at::Tensor> weights_BT;
};

/// Where D passes copy to. Without a store the engine keeps the bytes in host memory of its own.
struct EngineOffload {
  FarStore* store = nullptr;  // not owned; outlives the engine
  bool check = false;         // compare a checksum of what comes back
};

/// One rank's side of a step: the single loop that executes any Program over its stages. It knows
/// no schedule by name; what runs is what the Program lists, in that order, with the attention
/// exchange that the Program plans. Ownership: keeps
/// references to program, stages, transport and ledger; all outlive it. Threads: one thread,
/// prepared by RankThreadInit.
class Engine {
 public:
  /// `stages` are this rank's stages in ascending stage order.
  /// When the Program exchanges attention, all ranks construct together.
  /// REQUIRES: verify(program) is empty. Throws: InternalError when stages do not fit the
  /// placement.
  /// A program with vocabulary passes needs `vocabulary`.
  Engine(const Program& program, std::vector<Stage*> stages, Transport& transport,
         MemoryLedger& ledger, const EngineOffload& offload = {},
         const VocabSetup& vocabulary = {});
  ~Engine();

  /// Runs all actions once. Returns the loss sums per (microbatch, slice), index microbatch *
  /// num_slices + slice, on the rank with the output layer; empty elsewhere. A forward-only program
  /// evaluates. `optimizer` runs at the Program's optimizer action, when every gradient is
  /// complete. Throws: CommError when a peer is lost (then the state of this step is gone: start
  /// over from a checkpoint), InternalError when an invariant breaks.
  using Optimizer = std::function<void(const std::vector<LossSum>& losses)>;
  /// `stage_done`, where given, is told the place among this rank's stages of each stage whose
  /// gradients are complete while this rank still has passes to run.
  using StageDone = std::function<void(std::size_t chunk)>;
  std::vector<LossSum> run(const StepBatch& batch, const Optimizer& optimizer,
                           const StageDone& stage_done = {});

  /// Spans of the last run: one per compute pass, per message (from post to hand-over) and for the
  /// optimizer, in nanoseconds of now_ns(). Cheap, always recorded.
  const std::vector<Span>& spans() const { return spans_; }

  /// What copies have moved since construction.
  CopyCounters copies() const;

 private:
  struct Unit;  // what one (stage, microbatch, slice) holds between its actions

  Unit& unit(int stage, int microbatch, int slice);
  int chunk_of(int stage) const;
  void run_pass(const Pass& pass, const StepBatch& batch);
  void run_forward(const Pass& pass, const StepBatch& batch);
  void run_backward(const Pass& pass, const StepBatch& batch);
  void post_copy(std::size_t action);
  void wait_for_copy(const Pass& copy);
  AttentionExchange* exchange_of(const Pass& pass);
  void run_exchanging(const Pass& pass, const StepBatch& batch);
  void hand_over(const Pass& producer, at::Tensor tensor);
  void send(const Action& action);
  void receive(const Action& action, std::size_t index);
  at::Tensor boundary_room(const StepBatch& batch) const;
  at::Tensor slice_of(const at::Tensor& tensor_BT, int slice) const;
  void check_step_is_clean() const;

  const Program& program_;
  const int rank_;
  const std::vector<Stage*> stages_;
  Transport& transport_;
  MemoryLedger& ledger_;
  Messages messages_;
  const KeepTensor keep_, keep_key_value_, keep_gradient_;
  std::vector<Unit> units_;                        // chunk, microbatch, slice
  std::vector<KeyValueContext> contexts_;          // chunk, microbatch
  std::unique_ptr<Exchanger> exchanger_;           // null: nothing is exchanged
  std::size_t next_exchange_ = 0;                  // of the passes that take part
  std::unique_ptr<VocabRuntime> vocabulary_;       // null: the vocabulary is not sharded
  std::map<std::size_t, std::size_t> stage_ends_;  // action -> chunk, for StageDone
  std::vector<LossSum> losses_;
  std::vector<Span> spans_;
  at::Device device_;
  std::unique_ptr<FarStore> own_store_;      // when none was given and the program copies
  std::unique_ptr<ActivationStore> copies_;  // null: the program copies nothing
};

}  // namespace sluice
