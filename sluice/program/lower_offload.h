// lower_offload.h - what lower() makes of the D and U passes of one rank. Read next: offload.h of
// the schedule folder for what their places mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sluice/program/pass_grid.h"
#include "sluice/schedule/pass.h"

namespace sluice {

/// Follows a rank's passes and says where its copies stand and what waits for what:
///  - the action of a D stands right after its F, or after the D before it, so that the copy starts
///    as early as its lane allows; the place of the D in the schedule is where its memory must be
///    free, so the next F, and every U up to that F, depends on it;
///  - the action of a U stands where the schedule has it and depends on its own D, on the compute
///    pass before it and on those Ds; its B or I depends on it.
/// Without D and U costs nothing.
class OffloadLowering {
 public:
  /// Keeps references to both.
  OffloadLowering(std::span<const Pass> passes, const PassGrid& grid);

  /// The compute pass `pass` has become action `action`. Returns the Ds whose actions come now, in
  /// order; the caller appends each, depending on its F alone, and calls out_placed().
  std::span<const Pass> after_compute(const Pass& pass, std::int32_t action);
  void out_placed(const Pass& out, std::int32_t action);

  /// The schedule comes to a D: its memory must be free from here on.
  /// Throws: InternalError when its F has not been there.
  void at_out(const Pass& out);

  /// What a pass depends on because of copies; valid until the next call. For a U: its own D, the
  /// compute pass before it, and the Ds whose memory it may need.
  std::span<const std::int32_t> dependencies(const Pass& pass);
  void in_placed(const Pass& in, std::int32_t action);

 private:
  bool is_active() const { return !outs_.empty(); }

  const PassGrid& grid_;
  std::vector<Pass> outs_;          // the Ds of the rank in order
  std::size_t next_out_ = 0;        // the first one without an action
  std::vector<bool> forward_done_;  // per triple
  std::vector<std::int32_t> out_;   // per triple: action of its D
  std::vector<std::int32_t> in_;    // per triple: action of its U
  std::vector<std::int32_t> due_;   // Ds that the next F waits for
  std::int32_t last_compute_ = kNoAction;
  std::vector<std::int32_t> result_;
};

}  // namespace sluice
