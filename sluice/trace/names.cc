#include "sluice/trace/names.h"

#include <array>
#include <cstddef>

namespace sluice {

std::string_view long_name(PassKind kind) {
  static constexpr std::array<std::string_view, kNumPassKinds> kNames = {
      "forward",
      "backward",
      "backward for the input",
      "backward for the weights",
      "embedding forward",
      "embedding backward",
      "vocabulary forward",
      "vocabulary backward",
      "offload",
      "reload",
  };
  return kNames[static_cast<std::size_t>(kind)];
}

bool is_compute(const Span& span) {
  return span.lane == Lane::kCompute &&
         (span.kind == ActionKind::kPass || span.kind == ActionKind::kOptimizer);
}

}  // namespace sluice
