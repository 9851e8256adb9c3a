// cost_model.h - how long each pass and message takes, in integer ticks. Read next: simulate.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sluice/program/program.h"
#include "sluice/schedule/registry.h"

namespace sluice {

/// Integer durations. A tick has no fixed length: seconds (or units) = ticks * unit_per_tick. Integer
/// time makes equal times equal at every scale.
struct CostModel {
  int num_stages = 1;
  int num_slices = 1;
  double unit_per_tick = 1.0;
  /// ticks[kind][stage * num_slices + slice]; an empty vector means 0.
  std::array<std::vector<std::int64_t>, kNumPassKinds> ticks;
  std::int64_t message_ticks = 0;     // latency from the end of a pass to its use on the peer
  bool messages_occupy_link = false;  // also keep messages of one channel from overlapping

  std::int64_t duration(const Pass& pass) const {
    const auto& row = ticks[static_cast<std::size_t>(pass.kind)];
    return row.empty() ? 0
                       : row[static_cast<std::size_t>(pass.stage) *
                                 static_cast<std::size_t>(num_slices) +
                             static_cast<std::size_t>(pass.slice)];
  }
};

/// The same times as a generator wants them (whole microbatch per stage).
PassTicks to_pass_ticks(const CostModel& cost);

/// Times of one microbatch on one rank (all its chunks), divided evenly over chunks and slices
/// without rounding: the tick is 1e-6 / (chunks * slices) of the unit. One entry per rank, or one for
/// all. `backward` entries, when given, replace input and weight (a B without a known split).
struct RankTimes {
  std::vector<double> forward{1.0};
  std::vector<double> backward_input{1.0};
  std::vector<double> backward_weight{1.0};
  std::vector<double> backward;
  double message = 0.0;
};

/// Throws: InvalidArgument for a wrong number of entries or a negative or non-finite time.
CostModel cost_from_rank_times(const RankTimes& times, const Placement& placement, int num_slices);

}  // namespace sluice
