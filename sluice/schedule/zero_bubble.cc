// ZB-1p and ZB-2p (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1): the backward
// is split, and a greedy plan in time decides where each stage runs its weight passes. Eight flag
// settings are tried and the one with the shortest own span of a stage is kept.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/schedule/best_schedule.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/squeeze.h"

namespace sluice {
namespace {

/// What the published heuristic leaves open.
struct Flags {
  bool extra_warmup = false;  // one more forward in the warm-up, although it delays the first I
  bool skip_ahead = false;    // no waiting for a forward when two or more ahead of the next stage
  bool fill_small_gaps = false;  // a W in a gap shorter than W, where idling would set a new record
};

/// Memory in percent of a microbatch's activations on one stage.
struct Memory {
  std::int64_t limit = 0;
  int residue = 100;  // what stays between I and W
};

/// One stage on its way through the plan. Invariant: microbatches enter and leave in order, so
/// three counts say what is done.
struct StagePlan {
  std::int64_t free = 0;  // end of the last pass
  std::int64_t idle = 0;  // since the first forward
  int forwards = 0;
  int inputs = 0;
  int weights = 0;
  std::vector<std::int64_t> forward_end;  // by microbatch
  std::vector<std::int64_t> input_end;
  std::vector<Pass> passes;
};

class ZeroBubblePlanner {
 public:
  ZeroBubblePlanner(const ScheduleRequest& request, Memory memory, Flags flags)
      : num_microbatches_(request.microbatches),
        ticks_(request.ticks),
        memory_(memory),
        flags_(flags),
        stages_(static_cast<std::size_t>(request.ranks)) {}

  std::vector<std::vector<Pass>> run() {
    warm_up();
    bool moved = true;
    while (moved) {
      moved = false;
      for (int s = num_stages() - 1; s >= 0; --s) moved = try_input(s) || moved;
      for (int s = 0; s < num_stages(); ++s) moved = try_forward(s) || moved;
    }
    std::vector<std::vector<Pass>> ranks;
    for (int s = 0; s < num_stages(); ++s) {
      SLUICE_CHECK(stage(s).inputs == num_microbatches_, "stage {} of {} stops at microbatch {}", s,
                   num_stages(), stage(s).inputs);
      while (has_pending_weight(s)) run_weight(s);
      ranks.push_back(std::move(stage(s).passes));
    }
    return ranks;
  }

 private:
  int num_stages() const { return static_cast<int>(stages_.size()); }
  StagePlan& stage(int s) { return stages_[static_cast<std::size_t>(s)]; }
  const StagePlan& stage(int s) const { return stages_[static_cast<std::size_t>(s)]; }
  bool has_pending_weight(int s) const { return stage(s).weights < stage(s).inputs; }
  bool is_full(int s) const {
    const StagePlan& plan = stage(s);
    return std::int64_t{100} * (plan.forwards - plan.inputs + 1) +
               std::int64_t{memory_.residue} * (plan.inputs - plan.weights) >
           memory_.limit;
  }

  // As many forwards as memory allows and as end before the first microbatch comes back.
  void warm_up() {
    std::vector<std::int64_t> first_return(stages_.size());
    std::int64_t time = 0;
    for (int s = 0; s < num_stages(); ++s) {
      time += ticks_of(ticks_, PassKind::kForward, s) + (s > 0 ? ticks_.message : 0);
    }
    for (int s = num_stages() - 1; s >= 0; --s) {
      first_return[static_cast<std::size_t>(s)] = time;
      time += ticks_of(ticks_, PassKind::kBackwardInput, s) + ticks_.message;
    }
    for (int s = 0; s < num_stages(); ++s) {
      const std::int64_t back = first_return[static_cast<std::size_t>(s)];
      int most = num_microbatches_;
      // One behind the stage before, unless that has run out of microbatches.
      if (s > 0 && stage(s - 1).forwards < num_microbatches_) {
        most = std::min(most, std::max(1, stage(s - 1).forwards - 1));
      }
      while (stage(s).forwards < most && !is_full(s)) {
        const std::int64_t begin = std::max(stage(s).free, forward_arrival(s));
        const bool in_time = begin + ticks_of(ticks_, PassKind::kForward, s) <= back;
        const bool is_extra = !in_time && flags_.extra_warmup && begin < back;
        if (stage(s).forwards > 0 && !in_time && !is_extra) break;
        run_forward(s);
        if (is_extra) break;
      }
    }
  }

  bool try_input(int s) {
    const StagePlan& plan = stage(s);
    if (plan.inputs == num_microbatches_ || plan.inputs == plan.forwards) return false;
    const bool is_last = s == num_stages() - 1;
    if (!is_last && stage(s + 1).inputs <= plan.inputs) return false;
    const auto microbatch = static_cast<std::size_t>(plan.inputs);
    const std::int64_t arrival = is_last ? plan.forward_end[microbatch]
                                         : stage(s + 1).input_end[microbatch] + ticks_.message;
    fill_gap(s, arrival);
    begin_pass(s, PassKind::kBackwardInput, arrival);
    stage(s).input_end.push_back(stage(s).free);
    ++stage(s).inputs;
    return true;
  }

  bool try_forward(int s) {
    const StagePlan& plan = stage(s);
    if (plan.forwards == num_microbatches_) return false;
    if (s > 0 && stage(s - 1).forwards <= plan.forwards) return false;
    const std::int64_t arrival = forward_arrival(s);
    if (flags_.skip_ahead && s + 1 < num_stages() && plan.forwards > stage(s + 1).forwards + 1 &&
        arrival > plan.free) {
      return false;
    }
    fill_gap(s, arrival);
    while (is_full(s) && has_pending_weight(s)) run_weight(s);
    if (is_full(s)) return false;
    run_forward(s);
    return true;
  }

  std::int64_t forward_arrival(int s) const {
    if (s == 0) return 0;
    return stage(s - 1).forward_end[static_cast<std::size_t>(stage(s).forwards)] + ticks_.message;
  }

  // Runs weight passes in the idle time before `arrival`.
  void fill_gap(int s, std::int64_t arrival) {
    while (has_pending_weight(s) && stage(s).free < arrival) {
      const std::int64_t gap = arrival - stage(s).free;
      const bool fits = gap >= ticks_of(ticks_, PassKind::kBackwardWeight, s);
      if (!fits && !(flags_.fill_small_gaps && stage(s).idle + gap > most_idle_of_others(s)))
        return;
      run_weight(s);
    }
  }

  std::int64_t most_idle_of_others(int s) const {
    std::int64_t most = 0;
    for (int other = 0; other < num_stages(); ++other) {
      if (other != s) most = std::max(most, stage(other).idle);
    }
    return most;
  }

  void run_forward(int s) {
    begin_pass(s, PassKind::kForward, forward_arrival(s));
    stage(s).forward_end.push_back(stage(s).free);
    ++stage(s).forwards;
  }

  void run_weight(int s) {
    begin_pass(s, PassKind::kBackwardWeight, stage(s).free);
    ++stage(s).weights;
  }

  // Adds the next pass of `kind` and moves the stage's clock to its end.
  void begin_pass(int s, PassKind kind, std::int64_t arrival) {
    StagePlan& plan = stage(s);
    const int microbatch = kind == PassKind::kForward         ? plan.forwards
                           : kind == PassKind::kBackwardInput ? plan.inputs
                                                              : plan.weights;
    const std::int64_t begin = std::max(plan.free, arrival);
    if (!plan.passes.empty()) plan.idle += begin - plan.free;
    plan.free = begin + ticks_of(ticks_, kind, s);
    plan.passes.push_back({.kind = kind, .stage = s, .microbatch = microbatch});
  }

  int num_microbatches_;
  const PassTicks& ticks_;
  Memory memory_;
  Flags flags_;
  std::vector<StagePlan> stages_;
};

// The best of the eight flag settings under each of `memories`.
Schedule make_zero_bubble(std::string name, const ScheduleRequest& request,
                          const std::vector<Memory>& memories) {
  require_chunks(name, request, 1);
  require_no_group(name, request);
  check_ticks(request.ticks, request.ranks);
  BestSchedule best(request.ticks, BestSchedule::Goal::kSpan);
  for (const Memory& memory : memories) {
    for (int bits = 0; bits < 8; ++bits) {
      const Flags flags{.extra_warmup = (bits & 1) != 0,
                        .skip_ahead = (bits & 2) != 0,
                        .fill_small_gaps = (bits & 4) != 0};
      Schedule schedule = empty_schedule(name, Placement::loop(request.ranks, 1), request);
      schedule.ranks = ZeroBubblePlanner(request, memory, flags).run();
      best.offer(std::move(schedule));
    }
  }
  return best.take();
}

}  // namespace

Schedule make_zb_1p(const ScheduleRequest& request) {
  return make_zero_bubble("zb-1p", request, {{.limit = std::int64_t{100} * request.ranks}});
}

Schedule make_zb_2p(const ScheduleRequest& request) {
  const std::int64_t limit = std::int64_t{200} * request.ranks;
  const int residue = request.weight_residue_percent;
  if (residue < 0 || residue > 100) {
    throw InvalidArgument(
        fmt::format("a microbatch cannot keep {} percent of its activations between I and W: set "
                    "weight_residue_percent from 0 to 100",
                    residue));
  }
  // Without a smaller residue first: at equal time the schedule that holds less wins.
  return make_zero_bubble("zb-2p", request,
                          {{.limit = limit}, {.limit = limit, .residue = residue}});
}

}  // namespace sluice
