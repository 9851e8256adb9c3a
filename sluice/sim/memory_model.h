// memory_model.h - bytes a stage holds and a pass moves, in plain numbers. The trainer fills it
// from the model's shapes; simulate() turns it into a MemoryCurve.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

/// All per (microbatch, slice) unless said otherwise.
struct StageMemory {
  std::int64_t weights = 0;             // whole stage
  std::int64_t gradients = 0;           // whole stage
  std::int64_t optimizer = 0;           // whole stage
  std::int64_t saved = 0;               // activations kept from F until B or I
  std::int64_t saved_for_weight = 0;    // of which, or replaced by, kept from I until W
  std::int64_t movable = 0;             // of `saved`: what offload copies out and back
  std::int64_t boundary_input = 0;      // received activations, until F has consumed them
  std::int64_t boundary_output = 0;     // produced activations, until they are sent
  std::int64_t workspace_forward = 0;   // transient peak inside F
  std::int64_t workspace_backward = 0;  // transient peak inside B
  std::int64_t workspace_backward_input = 0;
  std::int64_t workspace_backward_weight = 0;
  // Several slices: keys and values that a slice's forward leaves for the later slices of its
  // microbatch, and their gradients; both go in the slice's own B or I.
  std::int64_t kv_cache = 0;
  std::int64_t kv_gradient = 0;
  // Largest inside a pass, where known (0: the sum of the numbers above is taken): activations of
  // the unit alone in I, and activations and workspace of the unit together with what the pass adds
  // to (or has freed of) keys, values and their gradients.
  std::int64_t peak_saved_backward_input = 0;
  std::int64_t peak_forward = 0;
  std::int64_t peak_backward = 0;
  std::int64_t peak_backward_input = 0;

  /// B and I of the last slice, which make the gradients of all slices' keys and values. All 0:
  /// like the other slices, with every gradient live at once.
  struct LastSlice {
    std::int64_t kv_gradient = 0;  // largest inside the pass
    std::int64_t workspace_backward = 0;
    std::int64_t workspace_backward_input = 0;
    std::int64_t peak_backward = 0;
    std::int64_t peak_backward_input = 0;
  };
  LastSlice last_slice = {};
};

/// Of one rank's shards of the vocabulary layers.
struct VocabMemory {
  std::int64_t weights = 0;             // both shards
  std::int64_t gradients = 0;           // both shards
  std::int64_t optimizer = 0;           // both shards
  std::int64_t embedded = 0;            // from E until its collective
  std::int64_t saved = 0;               // from S until T
  std::int64_t statistics = 0;          // from S until its collective
  std::int64_t token_loss = 0;          // what they become: in T, and on the last stage's rank from
                                        // the backward or T, whichever is first, to the other's end
  std::int64_t hidden_gradient = 0;     // from S (parallel-2) or the end of T (parallel-1), until
                                        // its collective
  std::int64_t workspace_forward = 0;   // transient peak inside S
  std::int64_t workspace_backward = 0;  // transient peak inside T
};

struct MemoryModel {
  std::vector<StageMemory> stages;
  std::vector<VocabMemory> vocabulary;  // per rank; empty: not sharded
};

}  // namespace sluice
