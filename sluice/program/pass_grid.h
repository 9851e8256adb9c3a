// pass_grid.h - flat arrays over the (stage, microbatch, slice) triples of a step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/schedule/pass.h"

namespace sluice {

/// Numbers the (stage, microbatch, slice) triples 0 .. size() - 1, slice fastest.
struct PassGrid {
  int num_stages = 0;
  int num_microbatches = 0;
  int num_slices = 1;

  /// Triples of one stage: the distance between the same (microbatch, slice) of neighbours.
  std::size_t stage_stride() const {
    return static_cast<std::size_t>(num_microbatches) * static_cast<std::size_t>(num_slices);
  }
  std::size_t size() const { return static_cast<std::size_t>(num_stages) * stage_stride(); }
  bool contains(const Pass& pass) const {
    return pass.stage >= 0 && pass.stage < num_stages && pass.microbatch >= 0 &&
           pass.microbatch < num_microbatches && pass.slice >= 0 && pass.slice < num_slices;
  }
  /// REQUIRES: contains(pass). The kind plays no part.
  std::size_t index(const Pass& pass) const {
    return static_cast<std::size_t>(pass.stage) * stage_stride() +
           static_cast<std::size_t>(pass.microbatch) * static_cast<std::size_t>(num_slices) +
           static_cast<std::size_t>(pass.slice);
  }
  /// The pass of `kind` whose index is `index`.
  Pass pass_at(std::size_t index, PassKind kind) const {
    const auto slices = static_cast<std::size_t>(num_slices);
    return {.kind = kind,
            .stage = static_cast<std::int32_t>(index / stage_stride()),
            .microbatch = static_cast<std::int32_t>(index % stage_stride() / slices),
            .slice = static_cast<std::int32_t>(index % slices)};
  }
};

/// No action.
inline constexpr std::int32_t kNoAction = -1;

/// 0 for the activations that a forward sends on, 1 for the gradients of a backward.
inline int direction_of(PassKind kind) { return kind == PassKind::kForward ? 0 : 1; }

/// Positions in the action lists of all that belongs to one (stage, microbatch, slice): its passes
/// and the messages they produce, by direction. 32 bytes, so that two share a cache line.
struct PassPlaces {
  std::int32_t forward = kNoAction;                  // F, on the stage's rank
  std::int32_t backward = kNoAction;                 // B or I
  std::int32_t weight = kNoAction;                   // W
  std::int32_t send[2] = {kNoAction, kNoAction};     // on the stage's rank
  std::int32_t receive[2] = {kNoAction, kNoAction};  // on the peer
  PassKind backward_kind = PassKind::kBackward;
};

}  // namespace sluice
