#include "sluice/sim/slice_memory.h"

namespace sluice {
namespace {

// Of one token in one layer.
std::int64_t saved_bytes(const SliceMemoryShape& shape) {
  switch (shape.kept) {
    case KeptActivations::kMatrixInputs:
      return 8 * shape.hidden + 4 * shape.key_value_width;
    case KeptActivations::kLayerInput:
      return 2 * shape.hidden;
    case KeptActivations::kAll:
      break;
  }
  return 12 * shape.hidden + 4 * shape.key_value_width + 6 * shape.intermediate;
}

}  // namespace

SliceMemory slice_memory(const SliceMemoryShape& shape) {
  const auto p = static_cast<double>(shape.ranks);
  const auto v = static_cast<double>(shape.chunks);
  const auto n = static_cast<double>(shape.slices);
  const auto m = static_cast<double>(shape.num_microbatches);
  const double shards = static_cast<double>(shape.tensor_parallel * shape.context_parallel);
  const double tokens = static_cast<double>(shape.sequence * shape.microbatch_size) / shards;
  const double layers = static_cast<double>(shape.num_layers) / p;
  SliceMemory memory;
  memory.activations =
      static_cast<double>(saved_bytes(shape)) * tokens * layers * (1.0 + 2.0 * (p - 1.0) / (n * v));
  memory.logits = 4.0 * tokens * static_cast<double>(shape.vocabulary) / p;
  memory.key_value_gradient = 2.0 * 2.0 * tokens * static_cast<double>(shape.hidden) * layers *
                              ((n - p) * v + n + p - 2.0) / (n * v);
  memory.bubble_fraction = (p - 1.0) / (m * n * v + p - 1.0);
  return memory;
}

}  // namespace sluice
