// Costs that differ between the slices of a sequence: by a model of attention, or as measured.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "sluice/common/errors.h"
#include "sluice/sim/cost_model.h"
#include "sluice/sim/ticks.h"

namespace sluice {
namespace {

std::vector<std::int64_t>& row(std::array<std::vector<std::int64_t>, kNumPassKinds>& table,
                               PassKind kind) {
  return table[static_cast<std::size_t>(kind)];
}

// `parts` ticks make a millionth of the unit.
CostModel empty_cost(const Placement& placement, int num_slices, std::int64_t parts,
                     double message) {
  SLUICE_CHECK(num_slices >= 1, "{} slices", num_slices);
  CostModel cost;
  cost.num_stages = placement.num_stages();
  cost.num_slices = num_slices;
  cost.unit_per_tick = 1.0 / (kTicksPerUnit * static_cast<double>(parts));
  const double ticks =
      static_cast<double>(to_micro_units(message, "message")) * static_cast<double>(parts);
  if (ticks > 9e18) {
    throw InvalidArgument(fmt::format(
        "message = {} is too long for times that are exact to so many slices: use a larger unit",
        message));
  }
  cost.message_ticks = to_micro_units(message, "message") * parts;
  return cost;
}

// Ticks of the slices of a stage, for every stage, from those of a rank with one chunk.
void fill(std::vector<std::int64_t>& out, const std::vector<std::int64_t>& slices,
          const Placement& placement, std::int64_t chunks) {
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    for (const std::int64_t ticks : slices) {
      out.push_back(stage_ticks(placement, stage, chunks, ticks));
    }
  }
}

// The slope of times over slices by least squares, per half slice, kept to what every slice has.
std::int64_t slope_per_half(const std::vector<std::int64_t>& times) {
  const double n = static_cast<double>(times.size());
  if (times.size() < 2) return 0;
  double sum = 0.0;
  double moment = 0.0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    sum += static_cast<double>(times[i]);
    moment += static_cast<double>(i) * static_cast<double>(times[i]);
  }
  const double slope = (12.0 * moment - 6.0 * (n - 1.0) * sum) / (n * (n * n - 1.0));
  auto half = static_cast<std::int64_t>(std::max(0.0, std::floor(slope / 2.0)));
  for (std::size_t i = 1; i < times.size(); ++i) {
    half = std::min(half, times[i] / (2 * static_cast<std::int64_t>(i)));
  }
  return half;
}

}  // namespace

CostModel cost_from_attention(double linear, double ratio, double message,
                              const Placement& placement, int num_slices) {
  const std::int64_t chunks = common_chunks(placement);
  const std::int64_t n = num_slices;
  CostModel cost = empty_cost(placement, num_slices, 2 * chunks * n * n, message);
  const std::int64_t linear_micros = to_micro_units(linear, "the linear part");
  const std::int64_t attention_micros = to_micro_units(ratio * linear, "attention");
  if (5.0 * static_cast<double>(linear_micros + attention_micros) * static_cast<double>(2 * n * n) >
      9e18) {
    throw InvalidArgument(
        fmt::format("times of {} are too long to be exact to {} slices; give them in a larger unit",
                    linear, num_slices));
  }
  // In ticks of a rank with `chunks` stages: a half slice of attention is attention / n^2, and the
  // tick halves that once more for the 2.5 of a backward.
  const std::int64_t half = 2 * attention_micros;
  std::vector<std::int64_t> forward;
  std::vector<std::int64_t> input;
  std::vector<std::int64_t> weight;
  std::vector<std::int64_t> full;
  for (std::int64_t c = 0; c < n; ++c) {
    const std::int64_t slice_linear = 2 * n * linear_micros;
    const std::int64_t attention = (2 * c + 1) * half;
    forward.push_back(slice_linear + attention);
    input.push_back(slice_linear + attention / 2 * 5);
    weight.push_back(slice_linear);
    full.push_back(2 * slice_linear + attention / 2 * 5);
  }
  fill(row(cost.ticks, PassKind::kForward), forward, placement, chunks);
  fill(row(cost.ticks, PassKind::kBackwardInput), input, placement, chunks);
  fill(row(cost.ticks, PassKind::kBackwardWeight), weight, placement, chunks);
  fill(row(cost.ticks, PassKind::kBackward), full, placement, chunks);
  const auto size = static_cast<std::size_t>(n);
  const std::vector<std::int64_t> halves(size, half);
  const std::vector<std::int64_t> backward_halves(size, half / 2 * 5);
  fill(row(cost.half_ticks, PassKind::kForward), halves, placement, chunks);
  fill(row(cost.half_ticks, PassKind::kBackward), backward_halves, placement, chunks);
  fill(row(cost.half_ticks, PassKind::kBackwardInput), backward_halves, placement, chunks);
  return cost;
}

CostModel cost_from_slice_times(const SliceTimes& times, const Placement& placement,
                                int num_slices) {
  const std::int64_t chunks = common_chunks(placement);
  CostModel cost = empty_cost(placement, num_slices, chunks, times.message);
  const auto add = [&](PassKind kind, const std::vector<double>& slices, std::string_view name,
                       bool attends) {
    if (slices.size() != static_cast<std::size_t>(num_slices)) {
      throw InvalidArgument(fmt::format("times {} have {} entries for {} slices: give one for each",
                                        name, slices.size(), num_slices));
    }
    std::vector<std::int64_t> micros;
    for (const double time : slices) micros.push_back(to_micro_units(time, name));
    fill(row(cost.ticks, kind), micros, placement, chunks);
    if (!attends) return;
    const std::vector<std::int64_t> halves(micros.size(), slope_per_half(micros));
    fill(row(cost.half_ticks, kind), halves, placement, chunks);
  };
  add(PassKind::kForward, times.forward, "forward", true);
  if (!times.backward.empty()) {
    add(PassKind::kBackward, times.backward, "backward", true);
    return cost;
  }
  add(PassKind::kBackwardInput, times.backward_input, "backward_input", true);
  add(PassKind::kBackwardWeight, times.backward_weight, "backward_weight", false);
  std::vector<double> full = times.backward_input;
  for (std::size_t i = 0; i < full.size(); ++i) full[i] += times.backward_weight[i];
  add(PassKind::kBackward, full, "backward", true);
  return cost;
}

}  // namespace sluice
