// accounting.h - bytes and floating-point operations of a stage, from shapes alone. Free of torch.
// Read next: stage.h.
#pragma once

#include <cstdint>

#include "sluice/model/config.h"
#include "sluice/model/layout.h"

namespace sluice {

/// Bytes of one (microbatch, slice) of B x T tokens through a stage, exactly as the stage's passes
/// allocate them on a CPU (tests hold them equal to what an allocator counted). Free of tensors.
/// A pass's workspace is the peak of the bytes it allocates and has not (yet) reported as kept; the
/// tensor it returns counts as workspace until it is returned.
struct StageBytes {
  std::int64_t weights = 0, gradients = 0;
  std::int64_t saved = 0;             // after F
  std::int64_t saved_for_weight = 0;  // after I
  std::int64_t boundary = 0;          // one boundary tensor, 0 for none: x_BTD
  std::int64_t kv_cache = 0;     // k and v of one slice in the KeyValueContext; 0 with one slice
  std::int64_t kv_gradient = 0;  // dk and dv of one slice; 0 with one slice
  std::int64_t workspace_forward = 0, workspace_backward = 0;  // transient peaks beyond `saved`
  std::int64_t workspace_backward_input = 0, workspace_backward_weight = 0;
  std::int64_t peak_saved_backward_input = 0;  // activations alone, inside I
  // Activations and workspace together, inside the pass, and what the pass has by then added to or
  // taken from the KeyValueContext; without the tensor that came from another stage. B frees
  // activations while its workspace grows, so the sum of both peaks is never reached.
  std::int64_t peak_forward = 0, peak_backward = 0, peak_backward_input = 0;

  /// B and I of the last slice, the first backward of a microbatch: they make the dk and dv of all
  /// slices at once. With one slice equal to the members above.
  struct LastSlice {
    std::int64_t kv_gradient = 0;  // largest inside the pass, of which one slice's share then goes
    std::int64_t workspace_backward = 0, workspace_backward_input = 0;
    std::int64_t peak_backward = 0, peak_backward_input = 0;
  };
  LastSlice last_slice;
};
StageBytes stage_bytes(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens, std::int64_t num_slices);

/// Rows of logits that the output layer holds at once, of `rows` in the slice.
std::int64_t loss_tile_rows(const ModelConfig& config, std::int64_t rows);

/// Relative compute cost of a stage's passes in FLOPs of one microbatch of `batch` sequences of
/// `tokens` tokens: what `auto` layout and the planner start from before anything is measured. The
/// output layer's work, forward included, is in backward_input, where it happens.
struct StageFlops {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
  double half_slice = 0.0;  // of a forward, attention to half an earlier slice
  double total() const { return forward + backward_input + backward_weight; }
};
StageFlops stage_flops(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens);

/// The same of slice `slice` of `tokens` tokens, whose attention looks at all earlier slices too.
/// The sum over the slices is that of the whole sequence.
StageFlops slice_flops(const ModelConfig& config, const StageLayers& layers, std::int64_t batch,
                       std::int64_t tokens, int slice);

}  // namespace sluice
