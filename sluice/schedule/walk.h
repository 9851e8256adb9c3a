// walk.h - runs a schedule without time, to see which passes can run at all. Used by validate().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// True for F, B, I, W, D and U, whose `stage` is a stage; false for E, G, S and T, where it is the
/// rank that holds the shard.
bool is_stage_pass(PassKind kind);

/// The rank a pass belongs on.
int home_rank(const Schedule& schedule, const Pass& pass);

/// Position of a (stage, microbatch, slice) in flat arrays; the vocabulary shards of the ranks
/// follow after the last stage.
struct UnitIndex {
  int num_stages = 0;
  int num_ranks = 0;
  int num_microbatches = 0;
  int num_slices = 1;

  explicit UnitIndex(const Schedule& schedule)
      : num_stages(schedule.num_stages()),
        num_ranks(schedule.num_ranks()),
        num_microbatches(schedule.num_microbatches),
        num_slices(schedule.num_slices) {}

  /// `place`: a stage, or num_stages + rank for the shard of a rank.
  std::size_t operator()(int place, int microbatch, int slice) const {
    return (static_cast<std::size_t>(place) * static_cast<std::size_t>(num_microbatches) +
            static_cast<std::size_t>(microbatch)) *
               static_cast<std::size_t>(num_slices) +
           static_cast<std::size_t>(slice);
  }
  std::size_t operator()(const Pass& pass) const {
    const int place = is_stage_pass(pass.kind) ? pass.stage : num_stages + pass.stage;
    return (*this)(place, pass.microbatch, pass.slice);
  }
  std::size_t units_per_place() const { return (*this)(1, 0, 0); }
  std::size_t size() const { return (*this)(num_stages + num_ranks, 0, 0); }
  /// Whether size() is in proportion to the number of passes there are. Checked before anything is
  /// allocated: the numbers may come from a damaged file.
  bool fits_in_memory(std::int64_t num_passes) const;
  bool contains(const Pass& pass) const {
    return pass.stage >= 0 && pass.stage < (is_stage_pass(pass.kind) ? num_stages : num_ranks) &&
           pass.microbatch >= 0 && pass.microbatch < num_microbatches && pass.slice >= 0 &&
           pass.slice < num_slices;
  }
};

/// Where every rank stops when each runs its passes in order, as soon as what they need is done.
struct Walk {
  std::vector<int> stop;      // per rank: index of the first pass that never runs, or the end
  std::vector<Pass> missing;  // per rank that stops early: a pass its next one waits for
};

/// Walks `schedule`. Beside what passes of stages need of each other, a shard of the vocabulary
/// serves all ranks: F of stage 0 needs E of every rank where there are any, G the backward of
/// stage 0, S the F of the last stage, T and the last stage's backward S of every rank, that
/// backward in the parallel-1 form also T of every rank. A pass
/// outside the schedule's sizes needs nothing and gives nothing. REQUIRES:
/// UnitIndex(schedule).fits_in_memory(), and one list of passes for each rank.
Walk walk(const Schedule& schedule);

}  // namespace sluice
