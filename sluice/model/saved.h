// saved.h - what the passes of one (microbatch, slice) leave for each other. Read next: stage.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace sluice {

class AttentionExchange;

/// Size and place of a slice: B sequences of T tokens, the first at an absolute position.
struct SliceShape {
  std::int64_t batch = 0, tokens = 0, first_position = 0;
  int slice = 0;

  std::int64_t rows() const { return batch * tokens; }
};

/// Tensors that one layer keeps between its passes, in an order only the layer knows. The runtime
/// counts, moves (offload) and brings back the tensors without knowing what they are: all are
/// defined, contiguous and the only owner of their storage; a copy of equal shape and type may take
/// the place of each.
struct SavedTensors {
  std::vector<at::Tensor> tensors;
};

/// Everything one stage keeps for one (microbatch, slice) from F until B, or until I and then W.
/// After I only what W needs is left in it.
struct StageSaved {
  SliceShape shape;                  // set by F
  SavedTensors embedding;            // stages with the embedding: the tokens
  std::vector<SavedTensors> layers;  // one per decoder layer
  SavedTensors head;                 // stages with the output layer
};

/// Called with every tensor at the moment it becomes saved, so that the runtime can charge it.
using KeepTensor = std::function<void(const at::Tensor&)>;

/// Keys and values that the slices of one microbatch share in one decoder layer: k[j], v[j] belong
/// to slice j, [B, KV heads, T, head size]. dk, dv accumulate what later slices add (fp32 for
/// bf16), and num_added counts the slices that have. The last slice's backward makes the gradients
/// of all slices, the backward of slice j takes those of j and frees all four tensors: every tensor
/// has one size, so a backward frees what the next microbatch's forward takes. With one slice all
/// lists stay empty: k and v are then saved tensors like any other.
struct LayerKeyValues {
  std::vector<at::Tensor> k, v, dk, dv;
  std::vector<int> num_added;
};

/// One LayerKeyValues per decoder layer of the stage, for one microbatch. Owned by the runtime.
struct KeyValueContext {
  int num_slices = 1;
  std::vector<LayerKeyValues> layers{};
  /// Called, when set, with every k, v and every dk, dv at the moment the stage puts it here, so
  /// that the runtime can charge it.
  KeepTensor keep_key_value{}, keep_gradient{};
  /// Set for a pass that shares its attention with other ranks. Not owned.
  AttentionExchange* exchange = nullptr;
};

/// Joins slices 0 and 1 of every layer into slice 0. Generation keeps all tokens so far in slice 0
/// and evaluates each new one as slice 1 of two. REQUIRES: both slices were evaluated.
void join_first_slices(KeyValueContext& context);

}  // namespace sluice
