// cost_model.h - how long each pass and message takes, in integer ticks. Read next: simulate.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sluice/program/plan_exchange.h"
#include "sluice/program/program.h"
#include "sluice/schedule/registry.h"

namespace sluice {

/// Integer durations. A tick has no fixed length: seconds (or units) = ticks * unit_per_tick.
/// Integer time makes equal times equal at every scale.
struct CostModel {
  int num_stages = 1;
  int num_slices = 1;
  double unit_per_tick = 1.0;
  /// ticks[kind][stage * num_slices + slice]; an empty vector means 0.
  std::array<std::vector<std::int64_t>, kNumPassKinds> ticks;
  std::int64_t message_ticks = 0;  // latency from the end of a pass to its use on the peer
  /// The same for the messages that each rank sends; empty: message_ticks for all.
  std::vector<std::int64_t> message_ticks_of_rank;
  /// Copies out and in of a rank take turns, and one back goes before one out; else each has a link
  /// of its own.
  bool copies_one_direction = true;
  /// Index: Collective. From the last rank's part until the result is everywhere. They overlap, as
  /// messages do.
  std::array<std::int64_t, kNumCollectives> collective_ticks{};
  bool messages_occupy_link = false;  // also keep messages of one channel from overlapping
  /// Of a pass's ticks, attention to one half of an older slice: what an exchange moves. Indexed
  /// like `ticks`; an empty vector means that nothing can move.
  std::array<std::vector<std::int64_t>, kNumPassKinds> half_ticks;
  ExchangeLink link;  // what moving it takes

  std::int64_t duration(const Pass& pass) const { return look_up(ticks, pass); }
  std::int64_t half_duration(const Pass& pass) const { return look_up(half_ticks, pass); }
  bool can_move_attention() const { return !half_ticks[0].empty(); }
  std::int64_t collective_duration(Collective kind) const {
    return collective_ticks[static_cast<std::size_t>(kind)];
  }
  std::int64_t message_duration(std::size_t sender) const {
    return message_ticks_of_rank.empty() ? message_ticks : message_ticks_of_rank[sender];
  }

 private:
  std::int64_t look_up(const std::array<std::vector<std::int64_t>, kNumPassKinds>& table,
                       const Pass& pass) const {
    const auto& row = table[static_cast<std::size_t>(pass.kind)];
    return row.empty()
               ? 0
               : row[static_cast<std::size_t>(pass.stage) * static_cast<std::size_t>(num_slices) +
                     static_cast<std::size_t>(pass.slice)];
  }
};

/// The same times as a generator wants them (whole microbatch per stage; the longest message). A
/// backward without a known split counts as backward for the input.
PassTicks to_pass_ticks(const CostModel& cost);

/// No time may be longer, in its unit: a product with the finest tick stays far inside 63 bits.
inline constexpr double kLongestTime = 1e9;

/// Times of one microbatch on one rank (all its chunks), divided evenly over chunks and slices
/// without rounding: the tick is 1e-6 / (chunks * slices) of the unit. One entry per rank, or one
/// for all. `backward` entries, when given, replace input and weight (a B without a known split: I
/// and W then take no time, so use such times only for schedules without them). Times are read to a
/// millionth of their unit.
struct RankTimes {
  std::vector<double> forward{1.0};
  std::vector<double> backward_input{1.0};
  std::vector<double> backward_weight{1.0};
  std::vector<double> backward;
  double message = 0.0;                 // of one message, whatever it carries
  std::vector<double> message_of_rank;  // when given, replaces `message` by the sender's entry
};

/// Throws: InvalidArgument for a wrong number of entries, or a time that is negative, not finite or
/// above kLongestTime.
CostModel cost_from_rank_times(const RankTimes& times, const Placement& placement, int num_slices);

/// Costs by a model of dense causal attention: of a forward of one microbatch on one rank the
/// linear part takes `linear` and attention `ratio` times that. With n slices, a slice with c older
/// ones takes linear / n + ratio * linear * (c + 1/2) / (n * n / 2) forward; backward for the input
/// takes the linear part once and 2.5 times the attention, for the weights the linear part; a full
/// backward both. Exact: a tick is 1e-6 / (2 * chunks * n * n) of the unit.
/// Throws: InvalidArgument for a time or ratio that is negative, not finite or above kLongestTime.
CostModel cost_from_attention(double linear, double ratio, double message,
                              const Placement& placement, int num_slices);

/// Times of one slice after the other on one rank (all its chunks), as measured; the ranks are
/// alike. `backward`, when given, replaces input and weight.
struct SliceTimes {
  std::vector<double> forward;  // index: slice
  std::vector<double> backward_input;
  std::vector<double> backward_weight;
  std::vector<double> backward;
  double message = 0.0;
};

/// Costs from measured slices. What attention to half an older slice takes is the slope of the
/// times over the slices (least squares), as far as every slice has that much. Throws:
/// InvalidArgument unless each list has one time for each of `num_slices` slices.
CostModel cost_from_slice_times(const SliceTimes& times, const Placement& placement,
                                int num_slices);

}  // namespace sluice
