#include "sluice/trace/memory.h"

#include <fmt/format.h>

#include "sluice/common/errors.h"

namespace sluice {

std::string_view to_string(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kWeights:
      return "weights";
    case MemoryClass::kGradients:
      return "gradients";
    case MemoryClass::kOptimizer:
      return "optimizer";
    case MemoryClass::kActivations:
      return "activations";
    case MemoryClass::kKvCache:
      return "kv_cache";
    case MemoryClass::kKvGradient:
      return "kv_gradient";
    case MemoryClass::kBoundary:
      return "boundary";
    case MemoryClass::kVocabulary:
      return "vocabulary";
    case MemoryClass::kWorkspace:
      return "workspace";
  }
  throw InternalError(fmt::format("no memory class {}", static_cast<int>(memory_class)));
}

}  // namespace sluice
