// timeline.h - what ran when, predicted by simulate() or measured by the Engine. One noun, two
// producers: every picture, check and benchmark takes either. Read next: grid.h, svg.h, chrome.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/program/program.h"
#include "sluice/trace/memory.h"

namespace sluice {

/// One action in time: [begin, end) in ticks of the timeline.
struct Span {
  ActionKind kind = ActionKind::kPass;
  Lane lane = Lane::kCompute;
  std::int32_t peer = -1;
  Pass pass;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Collective collective = Collective::kNone;  // kCollective
};

struct Timeline {
  std::string name;               // schedule name, for titles
  double seconds_per_tick = 1.0;  // 1e-9 for measured ones
  int num_slices = 1;
  int num_stages = 1;
  std::vector<std::vector<Span>> ranks;  // in begin order per lane

  std::int64_t begin() const;  // of the first span, 0 when empty
  std::int64_t end() const;    // of the last span
};

/// Idle and busy of the compute lanes.
struct BubbleReport {
  std::int64_t makespan = 0;          // first begin to last end over all ranks
  std::int64_t work = 0;              // busy time of the busiest rank
  double bubble_fraction = 0.0;       // idle share of ranks * makespan
  double span_bubble_fraction = 0.0;  // zero-bubble papers: longest own span of a rank, against the
                                      // work of the busiest rank
};

}  // namespace sluice
