// DualPipeV (DeepSeek-V3 report, arXiv 2412.19437, and the code released with it): two chunks on a
// V, forwards of one chunk beside backwards of the other.
#include <algorithm>
#include <array>
#include <cstddef>

#include "sluice/schedule/generators.h"

namespace sluice {
namespace {

/// Writes the passes of one rank; `phase` is the chunk, 0 on the way down the V and 1 on the way
/// up.
class RankWriter {
 public:
  RankWriter(int rank, const Schedule& schedule, std::vector<Pass>& passes)
      : stage_{rank, schedule.num_stages() - 1 - rank},
        num_microbatches_(schedule.num_microbatches),
        passes_(passes) {}

  void forward(int phase) { add(PassKind::kForward, phase, next_forward_[index(phase)]++); }
  void backward(int phase) { add(PassKind::kBackward, phase, next_backward_[index(phase)]++); }
  /// The input half now; its weight half joins a first-in-first-out queue.
  void backward_input(int phase) {
    const int microbatch = next_backward_[index(phase)]++;
    add(PassKind::kBackwardInput, phase, microbatch);
    waiting_.push_back({phase, microbatch});
  }
  void backward_weight() {
    const Waiting next = waiting_[next_weight_++];
    add(PassKind::kBackwardWeight, next.phase, next.microbatch);
  }

 private:
  struct Waiting {
    int phase = 0;
    int microbatch = 0;
  };

  static std::size_t index(int phase) { return static_cast<std::size_t>(phase); }

  // Microbatches beyond the last are counted but not written: see make_dualpipe_v.
  void add(PassKind kind, int phase, int microbatch) {
    if (microbatch >= num_microbatches_) return;
    passes_.push_back({.kind = kind, .stage = stage_[index(phase)], .microbatch = microbatch});
  }

  std::array<int, 2> stage_;
  int num_microbatches_;
  std::vector<Pass>& passes_;
  std::array<int, 2> next_forward_{};
  std::array<int, 2> next_backward_{};
  std::vector<Waiting> waiting_;
  std::size_t next_weight_ = 0;
};

void write_rank(RankWriter& w, int rank, int num_ranks, int num_microbatches) {
  const int below = num_ranks - 1 - rank;  // ranks between this one and the turn of the V
  for (int k = 0; k < 2 * below; ++k) w.forward(0);
  for (int k = 0; k < rank + 1; ++k) {
    w.forward(0);
    w.forward(1);
  }
  for (int k = 0; k < below; ++k) {
    w.backward_input(1);
    w.backward_weight();
    w.forward(1);
  }
  for (int k = 0; k < num_microbatches - 2 * num_ranks + rank + 1; ++k) {
    w.forward(0);
    w.backward(1);
    w.forward(1);
    w.backward(0);
  }
  for (int k = 0; k < below; ++k) {
    w.backward(1);
    w.forward(1);
    w.backward(0);
  }
  for (int k = 0; k < 2 * (rank + 1); ++k) {
    const int phase = k % 2 == 0 ? 1 : 0;
    if (k < rank + 1) {
      w.backward(phase);
    } else {
      w.backward_input(phase);
    }
  }
  for (int k = 0; k < below; ++k) {
    w.backward_weight();
    w.backward_input(0);
  }
  for (int k = 0; k < rank + 1; ++k) w.backward_weight();
}

}  // namespace

Schedule make_dualpipe_v(const ScheduleRequest& request) {
  require_chunks("dualpipe-v", request, 2);
  require_no_group("dualpipe-v", request);
  const int p = request.ranks;
  Schedule schedule = empty_schedule("dualpipe-v", Placement::v_shape(p), request);
  // The published list needs 2p microbatches. For fewer, take the list of 2p and leave out the
  // microbatches that are not there: no pass depends on another microbatch, so the rest still runs.
  const int listed = std::max(request.microbatches, 2 * p);
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Pass>& passes = schedule.ranks[static_cast<std::size_t>(rank)];
    passes.reserve(6 * static_cast<std::size_t>(request.microbatches));
    RankWriter writer(rank, schedule, passes);
    write_rank(writer, rank, p, listed);
  }
  return schedule;
}

}  // namespace sluice
