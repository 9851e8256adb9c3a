#include "sluice/trace/activations.h"

#include <algorithm>

#include "sluice/trace/names.h"

namespace sluice {
namespace {

bool frees(const Span& span) {
  return span.kind == ActionKind::kPass &&
         (span.pass.kind == PassKind::kBackward || span.pass.kind == PassKind::kBackwardWeight);
}

}  // namespace

std::vector<std::vector<ActivationSample>> saved_activations(const Timeline& timeline) {
  std::vector<std::vector<ActivationSample>> curves(timeline.ranks.size());
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const std::vector<Span>& spans = timeline.ranks[rank];
    if (std::none_of(spans.begin(), spans.end(), frees)) continue;
    std::int64_t count = 0;
    for (const Span& span : spans) {  // the compute lane is in order, so is what it saves
      if (!is_compute(span) || span.kind != ActionKind::kPass) continue;
      if (span.pass.kind == PassKind::kForward) {
        curves[rank].push_back({span.begin, ++count});
      } else if (frees(span)) {
        curves[rank].push_back({span.end, --count});
      }
    }
  }
  return curves;
}

}  // namespace sluice
