#include "sluice/trace/rows.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "sluice/trace/names.h"

namespace sluice {
namespace {

// Vocabulary passes carry their rank in `stage`, so only passes of layers count as chunks.
bool has_stage(PassKind kind) { return runs_layers(kind) || kind == PassKind::kBackwardWeight; }

std::vector<std::int32_t> stages_of(const std::vector<Cell>& cells) {
  std::vector<std::int32_t> stages;
  for (const Cell& cell : cells) {
    if (cell.is_optimizer || !has_stage(cell.pass.kind)) continue;
    const auto at = std::lower_bound(stages.begin(), stages.end(), cell.pass.stage);
    if (at == stages.end() || *at != cell.pass.stage) stages.insert(at, cell.pass.stage);
  }
  return stages;
}

std::int64_t tenth_percentile(std::vector<std::int64_t> lengths) {
  if (lengths.empty()) return 1;
  const auto at = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 10);
  std::nth_element(lengths.begin(), at, lengths.end());
  return *at;
}

}  // namespace

Rows picture_rows(const Timeline& timeline) {
  Rows rows;
  rows.num_slices = timeline.num_slices;
  rows.ranks.resize(timeline.ranks.size());
  rows.begin = std::numeric_limits<std::int64_t>::max();
  rows.end = std::numeric_limits<std::int64_t>::min();
  std::vector<std::int64_t> lengths;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::vector<Cell>& cells = rows.ranks[rank];
    for (const Span& span : timeline.ranks[rank]) {
      if (!is_compute(span) || span.end <= span.begin) continue;
      const bool is_optimizer = span.kind == ActionKind::kOptimizer;
      cells.push_back({span.begin, span.end, is_optimizer, 0, span.pass});
      rows.begin = std::min(rows.begin, span.begin);
      rows.end = std::max(rows.end, span.end);
      if (!is_optimizer) lengths.push_back(span.end - span.begin);
    }
    const std::vector<std::int32_t> stages = stages_of(cells);
    rows.num_chunks = std::max(rows.num_chunks, static_cast<int>(stages.size()));
    for (Cell& cell : cells) {
      if (cell.is_optimizer || !has_stage(cell.pass.kind)) continue;
      const auto at = std::lower_bound(stages.begin(), stages.end(), cell.pass.stage);
      cell.chunk = static_cast<int>(at - stages.begin());
    }
  }
  if (rows.begin > rows.end) rows.begin = rows.end = 0;
  rows.typical_ticks = tenth_percentile(std::move(lengths));
  return rows;
}

}  // namespace sluice
