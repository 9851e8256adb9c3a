// schedule.h - a schedule is data: the ordered passes of every rank. Read next: registry.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/pass.h"

namespace sluice {

/// Which rank holds each stage. Invariant: every stage has one rank in [0, num_ranks).
class Placement {
 public:
  Placement() = default;
  /// REQUIRES: every entry in [0, num_ranks). Throws: InvalidArgument otherwise.
  Placement(std::vector<int> rank_of_stage, int num_ranks);
  /// Stage c * ranks + r on rank r, chunk c.
  static Placement loop(int ranks, int chunks);
  /// Two chunks: rank r holds stages r and 2 * ranks - 1 - r.
  static Placement v_shape(int ranks);

  int num_ranks() const { return num_ranks_; }
  int num_stages() const { return static_cast<int>(rank_of_stage_.size()); }
  int rank_of(int stage) const { return rank_of_stage_[static_cast<std::size_t>(stage)]; }
  /// The stages of a rank in ascending order; the position in the list is the chunk index.
  const std::vector<int>& stages_of(int rank) const {
    return stages_of_rank_[static_cast<std::size_t>(rank)];
  }
  /// Position of a stage among its rank's stages.
  int chunk_of(int stage) const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  int num_ranks_ = 0;
  std::vector<int> rank_of_stage_;
  std::vector<std::vector<int>> stages_of_rank_;
};

/// Where embedding and output layer are computed: on the first and the last stage, or sharded by
/// vocabulary rows over all ranks (Vocabulary Parallelism, arXiv 2411.05288) with two barriers
/// between the last layer's forward and backward (its Algorithm 1) or one (its Algorithm 2).
enum class VocabForm : std::uint8_t { kLast, kParallel1, kParallel2 };

/// "last", "parallel-1" or "parallel-2".
std::string_view to_string(VocabForm form);

/// The ordered compute passes of every rank for one training step, plus the placement of stages.
/// A plain value: generators make it, validate() judges it, lower() turns it into a Program.
struct Schedule {
  std::string name;  // registry name, or the file it was read from
  Placement placement;
  int num_microbatches = 0;
  int num_slices = 1;
  bool forward_only = false;             // validation: forwards alone, nothing is saved
  VocabForm vocab = VocabForm::kLast;    // what S and T passes, where there are any, belong to
  std::vector<std::vector<Pass>> ranks;  // ranks[r] in execution order

  int num_ranks() const { return placement.num_ranks(); }
  int num_stages() const { return placement.num_stages(); }
  std::int64_t num_passes() const;
};

/// The forwards of `schedule` in their order: what a validation step runs.
Schedule forward_only(const Schedule& schedule);

/// Something wrong in a schedule, in words a user can act on.
struct Problem {
  int rank = -1;      // -1: no single rank
  int position = -1;  // index into ranks[rank]; -1: no single position
  std::string text;
};

/// Every problem of the schedule at once, empty when it can run:
///  - missing, doubled and misplaced passes: per stage, microbatch and slice one F and either B or
///  I
///    and W; D and U in pairs; E and G, S and T of every rank where there are any;
///  - order within a rank: F before B or I, I before W, F before D before U before B or I, slices
///    forward ascending and backward descending;
///  - gradient order: the weight passes (B or W) of a stage come microbatch ascending, slice
///    descending, so that every schedule adds up the same sum;
///  - deadlock across ranks.
/// Neighbouring microbatches with the same problem are told together. After 1000 problems the last
/// one counts the rest. Takes time linear in the number of passes.
std::vector<Problem> validate(const Schedule& schedule);

/// The problems as text: one line each, then the grid of passes in which cells that can never run
/// are marked with '!' and other cells that a problem names with '?'. Of a long schedule the grid
/// shows the part around the first marked cell.
std::string describe_problems(const Schedule& schedule, const std::vector<Problem>& problems);

}  // namespace sluice
