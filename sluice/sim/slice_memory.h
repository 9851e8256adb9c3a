// slice_memory.h - what sliced training needs on paper: closed forms of SlimPipe (arXiv
// 2504.14519). simulate() with a MemoryModel counts the same from a Program; these are for sizes
// that nobody has built yet, and to check one against the other.
#pragma once

#include <cstdint>

namespace sluice {

/// What a layer keeps of a forward for its backward.
enum class KeptActivations : std::uint8_t {
  kAll,
  kMatrixInputs,  // norms, activation function and first MLP product are computed again
  kLayerInput,    // all is computed again
};

/// A decoder with grouped-query attention and a gated MLP, 2 bytes an element, and how it is cut.
struct SliceMemoryShape {
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t key_value_width = 0;  // KV heads times head size
  std::int64_t num_layers = 0;
  std::int64_t vocabulary = 0;
  std::int64_t sequence = 0;  // tokens of one sequence
  std::int64_t microbatch_size = 1;
  std::int64_t num_microbatches = 1;
  std::int64_t tensor_parallel = 1;
  std::int64_t context_parallel = 1;
  std::int64_t ranks = 1;
  std::int64_t chunks = 1;
  std::int64_t slices = 1;  // REQUIRES: at least ranks
  KeptActivations kept = KeptActivations::kAll;
};

/// Bytes of rank 0, which holds most, and the idle share of ranks times makespan with equal work.
struct SliceMemory {
  double activations = 0.0;         // one microbatch's share of a rank, times 1 + 2 (p-1) / (n v)
  double logits = 0.0;              // fp32, sharded over the ranks, of a whole microbatch
  double key_value_gradient = 0.0;  // running dK and dV; counts the hidden size, not K/V's
  double bubble_fraction = 0.0;     // (p-1) / (m n v + p-1)
};

SliceMemory slice_memory(const SliceMemoryShape& shape);

}  // namespace sluice
