#include "sluice/schedule/squeeze.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

constexpr std::int64_t kNever = -1;

class Squeezer {
 public:
  Squeezer(const Schedule& schedule, const PassTicks& ticks)
      : schedule_(schedule),
        ticks_(ticks),
        index_(schedule),
        forward_end_(index_.size(), kNever),
        input_end_(index_.size(), kNever),
        waiting_(schedule.ranks.size(), 0),
        free_(schedule.ranks.size(), 0) {
    result_.start.resize(schedule.ranks.size());
    result_.peak.resize(schedule.ranks.size(), 0);
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      result_.start[r].reserve(schedule.ranks[r].size());
    }
  }

  SqueezedTimes run() {
    for (int rank = schedule_.num_ranks() - 1; rank >= 0; --rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    summarize();
    return std::move(result_);
  }

 private:
  void advance(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::vector<Pass>& passes = schedule_.ranks[r];
    std::vector<std::int64_t>& start = result_.start[r];
    while (start.size() < passes.size()) {
      const Pass& pass = passes[start.size()];
      const std::int64_t arrival = arrival_of(pass, rank);
      if (arrival == kNever) {
        waiting_[r] = 1;
        return;
      }
      const std::int64_t begin = std::max(arrival, free_[r]);
      free_[r] = begin + ticks_of(ticks_, pass.kind, pass.stage);
      start.push_back(begin);
      finish(pass, free_[r]);
    }
  }

  std::int64_t arrival_of(const Pass& pass, int rank) const {
    const int last = index_.num_stages - 1;
    const std::size_t unit = index_(pass);
    switch (pass.kind) {
      case PassKind::kForward:
        return pass.stage == 0 ? 0 : from(forward_end_, pass, pass.stage - 1, rank);
      case PassKind::kBackwardWeight:
        return input_end_[unit];
      default:
        if (forward_end_[unit] == kNever || pass.stage == last) return forward_end_[unit];
        return from(input_end_, pass, pass.stage + 1, rank);
    }
  }

  std::int64_t from(const std::vector<std::int64_t>& ends, const Pass& pass, int stage,
                    int rank) const {
    const std::int64_t end = ends[index_(stage, pass.microbatch, pass.slice)];
    if (end == kNever || schedule_.placement.rank_of(stage) == rank) return end;
    return end + ticks_.message;
  }

  void finish(const Pass& pass, std::int64_t end) {
    if (pass.kind == PassKind::kForward) {
      forward_end_[index_(pass)] = end;
      wake(pass.stage + 1);
    } else if (pass.kind != PassKind::kBackwardWeight) {
      input_end_[index_(pass)] = end;
      wake(pass.stage - 1);
    }
  }

  void wake(int stage) {
    if (stage < 0 || stage >= index_.num_stages) return;
    const int rank = schedule_.placement.rank_of(stage);
    if (std::exchange(waiting_[static_cast<std::size_t>(rank)], std::uint8_t{0}) != 0) {
      ready_.push_back(rank);
    }
  }

  void summarize() {
    result_.is_complete = true;
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
      const std::vector<Pass>& passes = schedule_.ranks[r];
      if (result_.start[r].size() < passes.size()) result_.is_complete = false;
      if (passes.empty() || !result_.is_complete) continue;
      result_.makespan = std::max(result_.makespan, free_[r]);
      result_.max_span = std::max(result_.max_span, free_[r] - result_.start[r].front());
      int held = 0;
      for (const Pass& pass : passes) {
        if (pass.kind == PassKind::kForward) ++held;
        result_.peak[r] = std::max(result_.peak[r], held);
        if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) --held;
      }
    }
  }

  const Schedule& schedule_;
  const PassTicks& ticks_;
  UnitIndex index_;
  std::vector<std::int64_t> forward_end_;
  std::vector<std::int64_t> input_end_;  // end of I, or of B
  std::vector<std::uint8_t> waiting_;    // per rank: stopped and not in ready_
  std::vector<int> ready_;
  std::vector<std::int64_t> free_;  // per rank: end of its last started pass
  SqueezedTimes result_;
};

std::int64_t entry(const std::vector<std::int64_t>& values, int stage) {
  return values.empty() ? 1 : values[static_cast<std::size_t>(stage)];
}

}  // namespace

std::int64_t ticks_of(const PassTicks& ticks, PassKind kind, int stage) {
  switch (kind) {
    case PassKind::kForward:
      return entry(ticks.forward, stage);
    case PassKind::kBackwardInput:
      return entry(ticks.backward_input, stage);
    case PassKind::kBackwardWeight:
      return entry(ticks.backward_weight, stage);
    default:
      return entry(ticks.backward_input, stage) + entry(ticks.backward_weight, stage);
  }
}

void check_ticks(const PassTicks& ticks, int num_stages) {
  const auto check = [&](std::string_view what, const std::vector<std::int64_t>& values) {
    if (!values.empty() && values.size() != static_cast<std::size_t>(num_stages)) {
      throw InvalidArgument(fmt::format(
          "{} has the ticks of {} stages, but the schedule has {}: give one for each stage", what,
          values.size(), num_stages));
    }
    for (const std::int64_t value : values) {
      if (value < 0) {
        throw InvalidArgument(fmt::format("{} has {} ticks: ticks are 0 or more", what, value));
      }
    }
  };
  check("forward", ticks.forward);
  check("backward_input", ticks.backward_input);
  check("backward_weight", ticks.backward_weight);
  if (ticks.message < 0) {
    throw InvalidArgument(fmt::format("message has {} ticks: ticks are 0 or more", ticks.message));
  }
}

SqueezedTimes squeeze(const Schedule& schedule, const PassTicks& ticks) {
  check_ticks(ticks, schedule.num_stages());
  return Squeezer(schedule, ticks).run();
}

}  // namespace sluice
