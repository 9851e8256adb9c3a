// memory.h - classes of device memory and their curve over time, predicted or measured.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

/// What bytes on a device are for. The names are those of memory.json.
enum class MemoryClass : std::uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,  // saved by a forward (or an I) for a later pass
  kKvCache,      // keys and values of slices
  kKvGradient,   // their gradients
  kBoundary,     // tensors between stages: produced but not sent, received but not consumed
  kVocabulary,   // logits, probabilities and statistics of vocabulary passes
  kWorkspace,    // everything a pass needs while it runs
};
inline constexpr int kNumMemoryClasses = 9;

/// "weights", "gradients", "optimizer", "activations", "kv_cache", ...
std::string_view to_string(MemoryClass memory_class);

using BytesByClass = std::array<std::int64_t, kNumMemoryClasses>;

inline std::int64_t total_bytes(const BytesByClass& bytes) {
  std::int64_t total = 0;
  for (const std::int64_t b : bytes) total += b;
  return total;
}

/// Peaks of one rank: of every class by itself, of the total, and the classes at the moment of the
/// total peak.
struct MemoryPeaks {
  BytesByClass by_class{};
  std::int64_t total = 0;
  BytesByClass at_total_peak{};
};

/// Live bytes by class after an event at `time` (ticks of the Timeline it belongs to).
struct MemorySample {
  std::int64_t time = 0;
  BytesByClass bytes{};
};

/// ranks[r]: samples of rank r in time order.
struct MemoryCurve {
  std::vector<std::vector<MemorySample>> ranks;
};

}  // namespace sluice
