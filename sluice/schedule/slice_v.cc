// SliceV: slices on a V with a split backward. The order of DualPipeV (arXiv 2412.19437) with a
// slice in the place of a microbatch: forward slices ascending, backward descending within a
// microbatch, W in the order of their I.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "sluice/schedule/generators.h"

namespace sluice {
namespace {

/// Writes the passes of one rank; `chunk` is 0 on the way down the V and 1 on the way up.
class RankWriter {
 public:
  RankWriter(int rank, const Schedule& schedule, std::vector<Pass>& passes)
      : stage_{rank, schedule.num_stages() - 1 - rank},
        num_slices_(schedule.num_slices),
        num_microbatches_(schedule.num_microbatches),
        passes_(passes) {}

  void forward(std::size_t chunk) {
    const std::int64_t number = forwards_[chunk]++;
    add({.kind = PassKind::kForward,
         .stage = stage_[chunk],
         .microbatch = static_cast<std::int32_t>(number / num_slices_),
         .slice = static_cast<std::int32_t>(number % num_slices_)});
  }
  void backward_input(std::size_t chunk) {
    const std::int64_t number = backwards_[chunk]++;
    const Pass pass{.kind = PassKind::kBackwardInput,
                    .stage = stage_[chunk],
                    .microbatch = static_cast<std::int32_t>(number / num_slices_),
                    .slice = static_cast<std::int32_t>(num_slices_ - 1 - number % num_slices_)};
    add(pass);
    waiting_.push_back(pass);
  }
  void backward_weight() {
    Pass pass = waiting_[next_weight_++];
    pass.kind = PassKind::kBackwardWeight;
    add(pass);
  }
  bool has_weights_left() const { return next_weight_ < waiting_.size(); }

 private:
  // Microbatches beyond the last are counted but not written: see make_slice_v.
  void add(const Pass& pass) {
    if (pass.microbatch < num_microbatches_) passes_.push_back(pass);
  }

  std::array<std::int32_t, 2> stage_;
  std::int64_t num_slices_;
  std::int32_t num_microbatches_;
  std::vector<Pass>& passes_;
  std::array<std::int64_t, 2> forwards_{};
  std::array<std::int64_t, 2> backwards_{};
  std::vector<Pass> waiting_;
  std::size_t next_weight_ = 0;
};

template <typename Step>
void repeat(std::int64_t count, const Step& step) {
  for (std::int64_t k = 0; k < count; ++k) step();
}

// The whole order for `total` slices of all microbatches together.
void write_rank(RankWriter& w, int rank, int num_ranks, int num_slices, std::int64_t total) {
  const int below = num_ranks - 1 - rank;  // ranks between this one and the turn of the V
  const std::int64_t held = num_slices + rank;
  const auto input_and_weight = [&](std::size_t chunk) {
    w.backward_input(chunk);
    w.backward_weight();
  };
  repeat(2 * below, [&] { w.forward(0); });
  repeat(held, [&] {
    w.forward(0);
    w.forward(1);
  });
  repeat(below, [&] {
    input_and_weight(1);
    w.forward(1);
  });
  repeat(total - 2 * below - held, [&] {
    input_and_weight(1);
    w.forward(0);
    input_and_weight(0);
    w.forward(1);
  });
  repeat(below, [&] {
    input_and_weight(1);
    input_and_weight(0);
    w.forward(1);
  });
  repeat(held, [&] {
    w.backward_input(1);
    w.backward_input(0);
  });
  repeat(below, [&] {
    w.backward_weight();
    w.backward_input(0);
  });
  while (w.has_weights_left()) w.backward_weight();
}

}  // namespace

Schedule make_slice_v(const ScheduleRequest& request) {
  require_chunks("slice-v", request, 2);
  require_no_group("slice-v", request);
  Schedule schedule = empty_schedule("slice-v", Placement::v_shape(request.ranks), request);
  schedule.num_slices = request.slices;
  // The order needs n + 2(p-1) slices. With fewer, the microbatches that are not there are left out
  // of it: what remains keeps the order of all that anybody waits for.
  const int n = request.slices;
  const int least = (n + 2 * (request.ranks - 1) + n - 1) / n;
  const std::int64_t total = std::int64_t{n} * std::max(request.microbatches, least);
  for (int rank = 0; rank < request.ranks; ++rank) {
    std::vector<Pass>& passes = schedule.ranks[static_cast<std::size_t>(rank)];
    passes.reserve(6 * static_cast<std::size_t>(n) *
                   static_cast<std::size_t>(request.microbatches));
    RankWriter writer(rank, schedule, passes);
    write_rank(writer, rank, request.ranks, n, total);
  }
  return schedule;
}

}  // namespace sluice
