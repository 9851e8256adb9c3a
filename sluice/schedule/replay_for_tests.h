// replay_for_tests.h - an independent, slow look at a schedule: runs it in time and counts what it
// holds. Tests compare generators and validate() with it; nothing else includes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice::testing {

/// Ticks of a pass of one stage. A B takes `input` + `weight`.
struct PassTimes {
  std::int64_t forward = 1;
  std::int64_t input = 1;
  std::int64_t weight = 1;
};

struct Replay {
  std::int64_t makespan = 0;
  std::int64_t longest_span = 0;  // longest own time of a rank, first start to last end
  std::vector<int> peak;          // per rank: passes saved at once, from F until B or W
};

/// Every pass starts when its rank is free and its inputs are there; nullopt when some never do.
/// With `fuse_pairs` a forward directly followed by a B runs with it as one: it starts when both
/// have their inputs and both end together.
inline std::optional<Replay> replay(const Schedule& schedule, const PassTimes& times = {},
                                    bool fuse_pairs = false) {
  // Key: F, backward for the input, or its weights; stage, microbatch, slice.
  std::map<std::tuple<char, int, int, int>, std::int64_t> ends;
  const std::size_t num_ranks = schedule.ranks.size();
  std::vector<std::size_t> next(num_ranks, 0);
  std::vector<bool> backward_seen(num_ranks, false);
  std::vector<std::int64_t> begin(num_ranks, -1);
  std::vector<std::int64_t> end(num_ranks, 0);
  Replay result;
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      while (next[rank] < schedule.ranks[rank].size()) {
        const std::vector<Pass>& passes = schedule.ranks[rank];
        const std::size_t at = next[rank];
        const bool pair = fuse_pairs && backward_seen[rank] && at + 1 < passes.size() &&
                          passes[at].kind == PassKind::kForward &&
                          passes[at + 1].kind == PassKind::kBackward;
        const std::size_t count = pair ? 2 : 1;
        std::int64_t start = end[rank];
        std::int64_t duration = 0;
        bool ready = true;
        for (std::size_t i = at; i < at + count; ++i) {
          const Pass& pass = passes[i];
          const auto after = [&](char kind, int stage, int slice) {
            if (stage < 0 || stage >= schedule.num_stages()) return;
            if (slice < 0 || slice >= schedule.num_slices) return;
            const auto found = ends.find({kind, stage, pass.microbatch, slice});
            if (found == ends.end()) {
              ready = false;
            } else {
              start = std::max(start, found->second);
            }
          };
          if (pass.kind == PassKind::kForward) {
            after('F', pass.stage - 1, pass.slice);
            after('F', pass.stage, pass.slice - 1);
            duration += times.forward;
          } else if (pass.kind == PassKind::kBackwardWeight) {
            after('I', pass.stage, pass.slice);
            duration += times.weight;
          } else {
            after('F', pass.stage, pass.slice);
            after('I', pass.stage + 1, pass.slice);
            after('I', pass.stage, pass.slice + 1);
            duration += times.input + (pass.kind == PassKind::kBackward ? times.weight : 0);
          }
        }
        if (!ready) break;
        if (begin[rank] < 0) begin[rank] = start;
        end[rank] = start + duration;
        for (std::size_t i = at; i < at + count; ++i) {
          const Pass& pass = passes[i];
          const char kind = pass.kind == PassKind::kBackward ? 'I' : letter(pass.kind);
          ends[{kind, pass.stage, pass.microbatch, pass.slice}] = end[rank];
        }
        next[rank] += count;
        backward_seen[rank] =
            backward_seen[rank] || passes[next[rank] - 1].kind != PassKind::kForward;
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (next[rank] < schedule.ranks[rank].size()) return std::nullopt;
    result.makespan = std::max(result.makespan, end[rank]);
    result.longest_span = std::max(result.longest_span, end[rank] - begin[rank]);
    int held = 0;
    int peak = 0;
    for (const Pass& pass : schedule.ranks[rank]) {
      if (pass.kind == PassKind::kForward) peak = std::max(peak, ++held);
      if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) --held;
    }
    result.peak.push_back(peak);
  }
  return result;
}

/// The passes of a rank as "F0.1 X2.0 ...": letter, microbatch.chunk; X is an I directly followed
/// by its W. The form in which the papers print GIS.
inline std::string in_chunks(const Schedule& schedule, std::size_t rank) {
  std::string text;
  const std::vector<Pass>& passes = schedule.ranks[rank];
  for (std::size_t i = 0; i < passes.size(); ++i) {
    char kind = letter(passes[i].kind);
    if (kind == 'I' && i + 1 < passes.size() && passes[i + 1].kind == PassKind::kBackwardWeight &&
        passes[i + 1].stage == passes[i].stage &&
        passes[i + 1].microbatch == passes[i].microbatch) {
      kind = 'X';
    }
    if (!text.empty()) text += ' ';
    text += kind;
    text += std::to_string(passes[i].microbatch) + '.' +
            std::to_string(schedule.placement.chunk_of(passes[i].stage));
    if (kind == 'X') ++i;
  }
  return text;
}

}  // namespace sluice::testing
