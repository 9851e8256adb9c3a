#include "sluice/trace/activations.h"

#include <algorithm>
#include <utility>

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
    std::vector<std::pair<std::int64_t, int>> changes;
    for (const Span& span : spans) {
      if (span.kind != ActionKind::kPass) continue;
      if (span.pass.kind == PassKind::kForward || span.pass.kind == PassKind::kReload) {
        changes.emplace_back(span.begin, 1);
      } else if (frees(span) || span.pass.kind == PassKind::kOffload) {
        changes.emplace_back(span.end, -1);
      }
    }
    // What ends frees before what begins there.
    std::stable_sort(changes.begin(), changes.end());
    std::int64_t count = 0;
    for (const auto& [time, change] : changes) curves[rank].push_back({time, count += change});
  }
  return curves;
}

}  // namespace sluice
