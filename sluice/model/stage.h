// stage.h - the layers of one pipeline stage with explicit forward, backward for the input and
// backward for the weights. Read next: decoder_layer.h, output_layer.h.
//
// Shapes: B sequences of a microbatch, T tokens of the slice, D hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/model/config.h"
#include "sluice/model/layout.h"
#include "sluice/model/parameter.h"

namespace sluice {

/// Tensors that one layer keeps between its passes, in an order only the layer knows. The runtime
/// counts, moves (offload) and brings back the tensors without knowing what they are.
struct SavedTensors {
  std::vector<at::Tensor> tensors;
};

/// Everything one stage keeps for one (microbatch, slice) from F until B, or until I and then W.
/// After I only what W needs is left in it.
struct StageSaved {
  SavedTensors embedding;            // stages with the embedding: the tokens
  std::vector<SavedTensors> layers;  // one per decoder layer
  SavedTensors head;                 // stages with the output layer
};

/// Called with every tensor at the moment it becomes saved, so that the runtime can charge it.
using KeepTensor = std::function<void(const at::Tensor&)>;

/// Keys and values that the slices of one microbatch share in one decoder layer: k[j], v[j] belong to
/// slice j, [B, KV heads, T, head size]. dk, dv accumulate what later slices add (fp32 for bf16).
/// With one slice all four stay empty: k and v are then saved tensors like any other.
struct LayerKeyValues {
  std::vector<at::Tensor> k, v, dk, dv;
};

/// One LayerKeyValues per decoder layer of the stage, for one microbatch. Owned by the runtime.
struct KeyValueContext {
  int num_slices = 1;
  std::vector<LayerKeyValues> layers;
};

/// What a stage's forward gets.
struct StageInput {
  at::Tensor tokens_BT;   // int64, stages with the embedding
  at::Tensor x_BTD;       // all other stages; taken over by the stage
  at::Tensor targets_BT;  // int64, stages with the output layer; ignore_index marks no target
  std::int64_t first_position = 0;  // absolute position of the slice's first token
  int slice = 0;
};

struct LossOptions {
  double scale = 1.0;  // d(total loss)/d(cross entropy of one token): 1 / valid targets of the batch
  std::int64_t ignore_index = -100;
  double z_loss = 0.0;  // adds z_loss * logsumexp^2 per token
};

/// Sums over the valid targets of one (microbatch, slice), in fp64.
struct LossSum {
  double cross_entropy = 0.0;
  double z_loss = 0.0;
  std::int64_t num_targets = 0;
};

/// One stage: parameters and the functions of its passes. Everything is written with ATen calls (and
/// fused CPU loops); autograd is not involved.
/// Bits: the result of a pass depends on its inputs alone, never on the schedule; backward() gives
/// the same bits as backward_input() followed by backward_weight(). Gradients are accumulated by one
/// in-place addition per pass, so the order of weight passes fixes the sum.
/// Threads: one at a time.
class Stage {
 public:
  /// Allocates parameters on `device` and initialises them by (seed, name).
  /// REQUIRES: check_config passed; layers inside the config.
  Stage(const ModelConfig& config, const StageLayers& layers, at::Device device,
        std::uint64_t seed);
  ~Stage();
  Stage(Stage&&) noexcept;
  Stage& operator=(Stage&&) noexcept;

  const StageLayers& layers() const;
  /// In a fixed order: embedding, layers ascending, final norm, output layer.
  std::vector<Parameter>& parameters();
  const std::vector<Parameter>& parameters() const;

  /// F. Returns y_BTD for the next stage; undefined on the stage with the output layer, which keeps
  /// the input of the final norm and the targets and computes the loss in B or I.
  at::Tensor forward(const StageInput& input, KeyValueContext& context, StageSaved& saved,
                     const KeepTensor& keep);

  /// I. `dy_BTD` is undefined on the stage with the output layer. Returns dx_BTD, undefined on the
  /// stage with the embedding. `loss` receives the sums on the stage with the output layer. The
  /// output layer's weight gradient is computed here too, tile by tile, since its dlogits never
  /// exist as a whole; so are the norms' weight gradients, which need no matrix product.
  at::Tensor backward_input(const at::Tensor& dy_BTD, const LossOptions& loss_options,
                            KeyValueContext& context, StageSaved& saved, const KeepTensor& keep,
                            LossSum* loss);

  /// W. Adds to the gradients what backward_input() left, and empties `saved`.
  void backward_weight(StageSaved& saved);

  /// B: I and W layer by layer, so that each layer's saved tensors are freed at once.
  at::Tensor backward(const at::Tensor& dy_BTD, const LossOptions& loss_options,
                      KeyValueContext& context, StageSaved& saved, const KeepTensor& keep,
                      LossSum* loss);

  /// Forward without saving anything. On the stage with the output layer fills `loss` when targets
  /// are given and returns undefined; otherwise returns y_BTD.
  at::Tensor evaluate(const StageInput& input, KeyValueContext& context,
                      const LossOptions& loss_options, LossSum* loss);

  /// Stage with the output layer only: logits_BV (fp32 or fp64) of the last position of x_BTD, an
  /// input of this stage, for generation.
  at::Tensor last_logits(const StageInput& input, KeyValueContext& context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Bytes of one (microbatch, slice) of B x T tokens through a stage, exactly as the stage's passes
/// allocate them (tests hold them equal to the byte). Free of tensors.
struct StageBytes {
  std::int64_t weights = 0, gradients = 0;
  std::int64_t saved = 0;             // after F
  std::int64_t saved_for_weight = 0;  // after I
  std::int64_t boundary = 0;          // one boundary tensor, 0 for none: x_BTD
  std::int64_t workspace_forward = 0, workspace_backward = 0;  // transient peaks beyond `saved`
  std::int64_t workspace_backward_input = 0, workspace_backward_weight = 0;
};
StageBytes stage_bytes(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens, std::int64_t num_slices);

/// Relative compute cost of a stage's passes in FLOPs of one (microbatch, slice): what `auto` layout
/// and the planner start from before anything is measured.
struct StageFlops {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
};
StageFlops stage_flops(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens);

}  // namespace sluice
