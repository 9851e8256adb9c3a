// stage.h - the layers of one pipeline stage with explicit forward, backward for the input and
// backward for the weights. Read next: saved.h, decoder_layer.h, output_layer.h.
//
// Shapes: B sequences of a microbatch, T tokens of the slice, D hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/model/accounting.h"
#include "sluice/model/config.h"
#include "sluice/model/layout.h"
#include "sluice/model/loss.h"
#include "sluice/model/parameter.h"
#include "sluice/model/saved.h"

namespace sluice {

/// What a stage's forward gets.
struct StageInput {
  at::Tensor tokens_BT{};   // int64, stages with the embedding
  at::Tensor x_BTD{};       // all other stages; taken over by the stage
  at::Tensor targets_BT{};  // int64, stages with the output layer; ignore_index marks no target
  std::int64_t first_position = 0;  // absolute position of the slice's first token
  int slice = 0;
};

/// One stage: parameters and the functions of its passes. Everything is written with ATen calls
/// (and fused CPU loops); autograd is not involved. Bits: the result of a pass depends on its
/// inputs alone, never on the schedule; backward() gives the same bits as backward_input() followed
/// by backward_weight(). Gradients are accumulated by one in-place addition per pass, so the order
/// of weight passes fixes the sum. Threads: one at a time.
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

  /// Uninitialised room for a boundary tensor, x_BTD or dy_BTD, of this model.
  at::Tensor boundary_room(std::int64_t sequences, std::int64_t tokens) const;

  /// F. Returns y_BTD for the next stage (with has_final_norm: that norm's output); undefined on
  /// the stage with the output layer, which keeps the input of the final norm and the targets and
  /// computes the loss in B or I.
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

}  // namespace sluice
