// schedules_for_tests.h - schedules from text, requests whose stages all take the same ticks, and
// bubbles in exact fractions. Used by the tests of the zero-bubble and V schedules; nothing else
// includes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/schedule/registry.h"
#include "sluice/schedule/squeeze.h"

namespace sluice::testing {

/// Ticks of a pass of one stage, and of a message.
struct UniformTicks {
  std::int64_t forward = 1;
  std::int64_t input = 1;
  std::int64_t weight = 1;
  std::int64_t message = 0;
};

inline ScheduleRequest uniform_request(int ranks, int microbatches, int chunks,
                                       const UniformTicks& ticks) {
  ScheduleRequest request{.ranks = ranks, .microbatches = microbatches, .chunks = chunks};
  const auto num_stages = static_cast<std::size_t>(ranks * chunks);
  request.ticks.forward.assign(num_stages, ticks.forward);
  request.ticks.backward_input.assign(num_stages, ticks.input);
  request.ticks.backward_weight.assign(num_stages, ticks.weight);
  request.ticks.message = ticks.message;
  return request;
}

/// A request with ticks of its own for every stage, also no ticks at all.
inline ScheduleRequest random_request(std::mt19937& random, int ranks, int microbatches,
                                      int chunks) {
  const auto ticks = [&random] { return static_cast<std::int64_t>(random() % 20); };
  ScheduleRequest request{.ranks = ranks, .microbatches = microbatches, .chunks = chunks};
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    request.ticks.forward.push_back(ticks());
    request.ticks.backward_input.push_back(ticks());
    request.ticks.backward_weight.push_back(ticks());
  }
  request.ticks.message = ticks();
  return request;
}

/// Ticks that every rank works in a step of `request`.
inline std::int64_t work_of(const ScheduleRequest& request, const UniformTicks& ticks) {
  return std::int64_t{request.microbatches} * request.chunks *
         (ticks.forward + ticks.input + ticks.weight);
}

/// Whether (time - work)/time <= bound/denominator, in integers.
inline bool bubble_at_most(std::int64_t time, std::int64_t work, std::int64_t bound,
                           std::int64_t denominator) {
  return (time - work) * denominator <= bound * time;
}

inline int highest_peak(const SqueezedTimes& times) {
  return *std::max_element(times.peak.begin(), times.peak.end());
}

/// A schedule on a loop placement from one line of passes per rank.
inline Schedule schedule_of(const std::vector<std::string>& lines, int num_stages,
                            int num_microbatches) {
  Schedule schedule;
  const int num_ranks = static_cast<int>(lines.size());
  schedule.placement = Placement::loop(num_ranks, num_stages / num_ranks);
  schedule.num_microbatches = num_microbatches;
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::vector<Pass>& passes = schedule.ranks.emplace_back();
    for (std::string word; words >> word;) passes.push_back(parse_pass(word));
  }
  return schedule;
}

/// The passes as "0F0 1F0".
inline std::string text_of(const std::vector<Pass>& passes) {
  std::string text;
  for (const Pass& pass : passes) text += (text.empty() ? "" : " ") + to_string(pass);
  return text;
}

}  // namespace sluice::testing
