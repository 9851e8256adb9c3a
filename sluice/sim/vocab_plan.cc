#include "sluice/sim/vocab_plan.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/program/pass_grid.h"
#include "sluice/schedule/vocab_passes.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// The start of every pass of a schedule without vocabulary passes, when the passes are longer by
/// the share of the vocabulary passes, and the last stage turns no sooner than its barriers allow.
class StretchedClock {
 public:
  StretchedClock(const Schedule& schedule, const CostModel& cost, std::int64_t turn)
      : schedule_(schedule),
        cost_(cost),
        turn_(turn),
        grid_{schedule.num_stages(), schedule.num_microbatches, schedule.num_slices},
        forward_(grid_.size(), kNever),
        backward_(grid_.size(), kNever),
        forward_begin_(grid_.size(), kNever),
        backward_begin_(grid_.size(), kNever),
        free_(schedule.ranks.size(), 0),
        start_(schedule.ranks.size()) {
    for (std::size_t rank = 0; rank < free_.size(); ++rank) stretch_.push_back(stretch_of(rank));
  }

  /// False when the schedule stands still.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < free_.size(); ++rank) moved |= advance(rank);
    }
    for (std::size_t rank = 0; rank < free_.size(); ++rank) {
      if (start_[rank].size() != schedule_.ranks[rank].size()) return false;
    }
    return true;
  }

  const std::vector<std::vector<std::int64_t>>& start() const { return start_; }
  const PassGrid& grid() const { return grid_; }
  std::int64_t forward_end(const Pass& pass) const { return forward_[grid_.index(pass)]; }
  std::int64_t forward_begin(const Pass& pass) const { return forward_begin_[grid_.index(pass)]; }
  std::int64_t backward_end(const Pass& pass) const { return backward_[grid_.index(pass)]; }
  std::int64_t backward_begin(const Pass& pass) const { return backward_begin_[grid_.index(pass)]; }
  std::int64_t length(std::size_t rank, const Pass& pass) const {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(static_cast<double>(cost_.duration(pass)) * stretch_[rank]));
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  double stretch_of(std::size_t rank) const {
    double work = 0.0, extra = 0.0;
    for (const Pass& pass : schedule_.ranks[rank]) {
      work += static_cast<double>(cost_.duration(pass));
    }
    for (const PassKind kind : {PassKind::kEmbedForward, PassKind::kEmbedBackward,
                                PassKind::kVocabForward, PassKind::kVocabBackward}) {
      for (int slice = 0; slice < grid_.num_slices; ++slice) {
        extra += static_cast<double>(grid_.num_microbatches) *
                 static_cast<double>(cost_.duration(
                     {.kind = kind, .stage = static_cast<std::int32_t>(rank), .slice = slice}));
      }
    }
    return work > 0.0 ? (work + extra) / work : 1.0;
  }

  std::int64_t message(int from, int to) const {
    const int rank = schedule_.placement.rank_of(from);
    return rank == schedule_.placement.rank_of(to) ? 0 : cost_.message_duration(index(rank));
  }

  std::int64_t arrival(const Pass& pass) const {
    const auto after = [](std::int64_t end, std::int64_t more) {
      return end == kNever ? kNever : end + more;
    };
    const std::size_t at = grid_.index(pass);
    if (pass.kind == PassKind::kForward) {
      return pass.stage == 0
                 ? 0
                 : after(forward_[at - grid_.stage_stride()], message(pass.stage - 1, pass.stage));
    }
    if (!is_backward(pass.kind)) return 0;
    return pass.stage + 1 == grid_.num_stages
               ? after(forward_[at], turn_)
               : after(backward_[at + grid_.stage_stride()], message(pass.stage + 1, pass.stage));
  }

  bool advance(std::size_t rank) {
    const std::vector<Pass>& passes = schedule_.ranks[rank];
    std::vector<std::int64_t>& start = start_[rank];
    const std::size_t before = start.size();
    while (start.size() < passes.size()) {
      const Pass& pass = passes[start.size()];
      const std::int64_t time = arrival(pass);
      if (time == kNever) break;
      start.push_back(std::max(time, free_[rank]));
      free_[rank] = start.back() + length(rank, pass);
      const std::size_t at = grid_.index(pass);
      if (pass.kind == PassKind::kForward) {
        forward_begin_[at] = start.back();
        forward_[at] = free_[rank];
      } else if (is_backward(pass.kind)) {
        backward_begin_[at] = start.back();
        backward_[at] = free_[rank];
      }
    }
    return start.size() != before;
  }

  const Schedule& schedule_;
  const CostModel& cost_;
  const std::int64_t turn_;
  PassGrid grid_;
  std::vector<std::int64_t> forward_, backward_;  // ends
  std::vector<std::int64_t> forward_begin_, backward_begin_;
  std::vector<std::int64_t> free_;
  std::vector<std::vector<std::int64_t>> start_;
  std::vector<double> stretch_;
};

/// What a placement is made with.
struct Choice {
  int num_units = 0;       // by which backwards are delayed
  std::int64_t slack = 0;  // S waits so long after the hidden states are everywhere
  // The first and the last units do not wait at all: nothing else is to be done then.
  bool first_at_once = false;
  bool last_at_once = false;
  int num_late = 0;       // parallel-2: T runs so many units later than before the next S
  std::int64_t lead = 0;  // E runs so long before F of the first stage
};

class Planner {
 public:
  Planner(VocabForm form, const CostModel& cost) : form_(form), cost_(cost) {}

  Schedule place(const Schedule& base, const Choice& choice) const {
    StretchedClock clock(base, cost_, turn(base, choice));
    SLUICE_CHECK(clock.run(), "schedule {} stands still before it has vocabulary passes",
                 base.name);
    return insert_vocab_passes(base, form_, clock.start(), times(base, clock, choice));
  }

 private:
  std::int64_t longest(const Schedule& base, PassKind kind) const {
    std::int64_t most = 1;
    for (int rank = 0; rank < base.num_ranks(); ++rank) {
      for (int slice = 0; slice < base.num_slices; ++slice) {
        most = std::max(most, cost_.duration({.kind = kind, .stage = rank, .slice = slice}));
      }
    }
    return most;
  }
  std::int64_t barrier() const {
    return cost_.collective_duration(Collective::kGatherStatistics) +
           cost_.collective_duration(Collective::kReduceHiddenGradient);
  }

  // From the end of F of the last stage to S.
  std::int64_t wait(const Choice& choice, int unit, int num_units) const {
    const int edge = form_ == VocabForm::kParallel1 ? 2 : 1;
    const bool at_once =
        (choice.first_at_once && unit < edge) || (choice.last_at_once && unit >= num_units - edge);
    return at_once ? 0 : cost_.collective_duration(Collective::kBroadcastHidden) + choice.slack;
  }

  // From the end of F of the last stage to the start of its backward at least.
  std::int64_t turn(const Schedule& base, const Choice& choice) const {
    const std::int64_t first = cost_.collective_duration(Collective::kBroadcastHidden) +
                               choice.slack + longest(base, PassKind::kVocabForward) + barrier() +
                               4;
    return form_ == VocabForm::kParallel1
               ? first + longest(base, PassKind::kVocabBackward) + barrier()
               : first;
  }

  // The times of all vocabulary passes, the same for all ranks.
  std::vector<TimedVocabPass> times(const Schedule& base, const StretchedClock& clock,
                                    const Choice& choice) const {
    const int last_stage = base.num_stages() - 1;
    const int num_slices = base.num_slices;
    const std::int64_t forward = longest(base, PassKind::kVocabForward);
    const std::int64_t backward = longest(base, PassKind::kVocabBackward);
    std::vector<TimedVocabPass> passes;
    std::vector<std::int64_t> output;  // of S, in the order of units
    std::int64_t latest = 0;
    int unit = 0;
    const int num_units = base.num_microbatches * num_slices;
    for (int microbatch = 0; microbatch < base.num_microbatches; ++microbatch) {
      for (int slice = 0; slice < num_slices; ++slice) {
        const Pass f{.kind = PassKind::kForward,
                     .stage = last_stage,
                     .microbatch = microbatch,
                     .slice = slice};
        // One after the other, also when the last ones do not wait.
        latest = std::max(latest + 1, clock.forward_end(f) + wait(choice, unit++, num_units));
        output.push_back(latest);
        const Pass first{
            .kind = PassKind::kForward, .stage = 0, .microbatch = microbatch, .slice = slice};
        passes.push_back(
            {clock.forward_begin(first) - choice.lead, PassKind::kEmbedForward, microbatch, slice});
        const Pass b{
            .kind = PassKind::kBackward, .stage = 0, .microbatch = microbatch, .slice = slice};
        passes.push_back({clock.backward_end(b), PassKind::kEmbedBackward, microbatch, slice});
      }
    }
    for (unit = 0; unit < num_units; ++unit) {
      const int microbatch = unit / num_slices, slice = unit % num_slices;
      const std::int64_t earliest = output[index(unit)] + forward + barrier();
      // T rides in front of the next S, or of a later one.
      const int next = unit + 1 + (form_ == VocabForm::kParallel2 ? choice.num_late : 0);
      std::int64_t time =
          next < num_units ? output[index(next)] : std::max(earliest, output.back() + 1);
      if (form_ == VocabForm::kParallel1) {
        const Pass b{.kind = PassKind::kBackward,
                     .stage = last_stage,
                     .microbatch = microbatch,
                     .slice = slice};
        const std::int64_t due = clock.backward_begin(b) - backward - barrier();
        time = std::min(std::max(time, earliest), due);
      }
      passes.push_back({output[index(unit)], PassKind::kVocabForward, microbatch, slice});
      passes.push_back({time, PassKind::kVocabBackward, microbatch, slice});
    }
    const auto rank_of = [](PassKind kind) {
      return kind == PassKind::kVocabBackward  ? 0
             : kind == PassKind::kVocabForward ? 1
             : kind == PassKind::kEmbedForward ? 2
                                               : 3;
    };
    std::stable_sort(
        passes.begin(), passes.end(), [&](const TimedVocabPass& a, const TimedVocabPass& b) {
          return std::pair(a.time, rank_of(a.kind)) < std::pair(b.time, rank_of(b.kind));
        });
    return passes;
  }

  const VocabForm form_;
  const CostModel& cost_;
};

/// Above this many passes the placement is chosen for fewer microbatches: the search would take
/// seconds, and the order repeats.
constexpr std::int64_t kMostPassesToSearch = 20'000;

/// Tries placements of one number of microbatches.
class Search {
 public:
  Search(const MakeSchedule& make, int num_microbatches, VocabForm form, const CostModel& cost)
      : make_(make),
        num_microbatches_(num_microbatches),
        planner_(form, cost),
        cost_(cost),
        plain_(make(num_microbatches)) {}

  const Schedule& plain() const { return plain_; }

  Schedule place(const Choice& choice) const {
    return planner_.place(base(choice.num_units), choice);
  }

  // The wait, and whether the ends of the step wait, first; what is left for the best of them.
  Choice run(int most_units) {
    for (int num_units = most_units; num_units >= 0; --num_units) {
      const Schedule delayed = base(num_units);
      for (const std::int64_t slack : slacks()) {
        for (const bool at_once : {false, true}) {
          offer(delayed, {.num_units = num_units,
                          .slack = slack,
                          .first_at_once = at_once,
                          .last_at_once = at_once,
                          .lead = 2 * longest_forward()});
        }
      }
    }
    const Choice found = best_;
    const Schedule delayed = base(found.num_units);
    for (const int num_late : {0, 1}) {
      for (const bool first : {false, true}) {
        for (const bool last : {false, true}) {
          Choice choice = found;
          choice.first_at_once = first;
          choice.last_at_once = last;
          choice.num_late = num_late;
          offer(delayed, choice);
        }
      }
    }
    return best_;
  }

 private:
  Schedule base(int num_units) const {
    if (num_units == 0) return plain_;
    const int more = (num_units + plain_.num_slices - 1) / plain_.num_slices;
    return delay_backwards(make_(num_microbatches_ + more), num_units, num_microbatches_);
  }

  // Of one unit on the slowest rank.
  std::int64_t longest_forward() const {
    std::int64_t longest = 0;
    for (int rank = 0; rank < plain_.num_ranks(); ++rank) {
      std::int64_t own = 0;
      for (const int stage : plain_.placement.stages_of(rank)) {
        own += cost_.duration({.kind = PassKind::kForward, .stage = stage});
      }
      longest = std::max(longest, own);
    }
    return longest;
  }

  std::vector<std::int64_t> slacks() const {
    std::vector<std::int64_t> ticks;
    const bool few = plain_.num_passes() > kMostPassesToSearch;
    for (const int percent :
         few ? std::vector{0, 20, 50, 100} : std::vector{0, 5, 10, 20, 30, 40, 50, 60, 80, 100}) {
      ticks.push_back(longest_forward() * percent / 100);
    }
    return ticks;
  }

  void offer(const Schedule& delayed, const Choice& choice) {
    const Schedule schedule = planner_.place(delayed, choice);
    const Simulation result = simulate(lower(schedule), cost_);
    const std::tuple key(result.bubble.makespan,
                         *std::max_element(result.peak_saved.begin(), result.peak_saved.end()));
    if (has_best_ && key >= best_key_) return;
    has_best_ = true;
    best_key_ = key;
    best_ = choice;
  }

  const MakeSchedule& make_;
  const int num_microbatches_;
  const Planner planner_;
  const CostModel& cost_;
  const Schedule plain_;
  bool has_best_ = false;
  Choice best_;
  std::tuple<std::int64_t, std::int64_t> best_key_;
};

}  // namespace

Schedule plan_vocabulary(const MakeSchedule& make, int num_microbatches, VocabForm form,
                         const CostModel& cost) {
  SLUICE_CHECK(form != VocabForm::kLast, "no form of vocabulary parallelism");
  const int most_units = form == VocabForm::kParallel1 ? 2 : 1;
  Search whole(make, num_microbatches, form, cost);
  const std::int64_t num_passes = whole.plain().num_passes();
  const int enough = std::max(4 * whole.plain().num_ranks(),
                              static_cast<int>(kMostPassesToSearch * num_microbatches /
                                               std::max<std::int64_t>(1, num_passes)));
  if (num_microbatches <= enough) return whole.place(whole.run(most_units));
  Search part(make, enough, form, cost);
  return whole.place(part.run(most_units));
}

}  // namespace sluice
