#include "sluice/trace/timeline.h"

#include <algorithm>
#include <limits>

namespace sluice {

std::int64_t Timeline::begin() const {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<Span>& spans : ranks) {
    for (const Span& span : spans) first = std::min(first, span.begin);
  }
  return first == std::numeric_limits<std::int64_t>::max() ? 0 : first;
}

std::int64_t Timeline::end() const {
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  for (const std::vector<Span>& spans : ranks) {
    for (const Span& span : spans) last = std::max(last, span.end);
  }
  return last == std::numeric_limits<std::int64_t>::min() ? 0 : last;
}

}  // namespace sluice
