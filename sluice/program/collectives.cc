#include "sluice/program/collectives.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "sluice/common/errors.h"
#include "sluice/program/pass_grid.h"

namespace sluice {
namespace {

template <typename Passes>
void note(VocabPasses& found, const Passes& passes) {
  for (const Pass& pass : passes) {
    found.has_embedding |=
        pass.kind == PassKind::kEmbedForward || pass.kind == PassKind::kEmbedBackward;
    found.has_output |=
        pass.kind == PassKind::kVocabForward || pass.kind == PassKind::kVocabBackward;
  }
}

/// Runs a schedule with nominal times, to see in which order its collectives become ready.
class NominalClock {
 public:
  NominalClock(const Schedule& schedule, const VocabPasses& passes)
      : schedule_(schedule),
        passes_(passes),
        grid_{schedule.num_stages(), schedule.num_microbatches, schedule.num_slices},
        forward_(grid_.size(), kNever),
        backward_(grid_.size(), kNever),
        next_(schedule.ranks.size(), 0),
        free_(schedule.ranks.size(), 0) {
    for (auto* shard : {&embed_, &logits_, &gradient_}) shard->resize(grid_.stage_stride());
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank) moved |= advance(rank);
    }
  }

  // A collective of a schedule that stands still comes last.
  std::int64_t ready(const CollectiveId& id) const {
    const std::size_t unit = unit_of(id.microbatch, id.slice);
    const std::size_t last = unit + grid_.stage_stride() * index(grid_.num_stages - 1);
    switch (id.kind) {
      case Collective::kReduceEmbedding:
        return whole(embed_[unit]);
      case Collective::kBroadcastHidden:
        return forward_[last];
      case Collective::kGatherStatistics:
        return whole(logits_[unit]);
      case Collective::kReduceHiddenGradient:
        return passes_.form == VocabForm::kParallel1 ? whole(gradient_[unit])
                                                     : whole(logits_[unit]);
      default:
        return backward_[unit];
    }
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  /// Passes of all ranks for one microbatch and slice.
  struct Shards {
    int count = 0;
    std::int64_t end = 0;
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::size_t unit_of(int microbatch, int slice) const {
    return grid_.index({.stage = 0, .microbatch = microbatch, .slice = slice});
  }
  std::int64_t whole(const Shards& shards) const {
    return shards.count == schedule_.num_ranks() ? shards.end : kNever;
  }

  static std::int64_t length(PassKind kind) {
    switch (kind) {
      case PassKind::kForward:
      case PassKind::kBackwardInput:
      case PassKind::kBackwardWeight:
        return 2;
      case PassKind::kBackward:
        return 4;
      case PassKind::kOffload:
      case PassKind::kReload:
        return 0;
      default:
        return 1;
    }
  }

  std::int64_t arrival(const Pass& pass) const {
    const bool of_layers = runs_layers(pass.kind);
    std::int64_t time = 0;
    if (pass.kind == PassKind::kForward && pass.stage > 0) {
      time = forward_[grid_.index(pass) - grid_.stage_stride()];
    } else if (is_backward(pass.kind) && pass.stage + 1 < grid_.num_stages) {
      time = backward_[grid_.index(pass) + grid_.stage_stride()];
    }
    if (!of_layers && passes_.needed_by(pass)[0] == Collective::kNone) return time;
    for (const Collective kind : passes_.needed_by(pass)) {
      if (kind == Collective::kNone) continue;
      time = std::max(time, ready({kind, pass.microbatch, pass.slice}));
    }
    return time;
  }

  bool advance(std::size_t rank) {
    const std::vector<Pass>& passes = schedule_.ranks[rank];
    const std::size_t before = next_[rank];
    for (; next_[rank] < passes.size(); ++next_[rank]) {
      const Pass& pass = passes[next_[rank]];
      const std::int64_t time = arrival(pass);
      if (time == kNever) break;
      free_[rank] = std::max(free_[rank], time) + length(pass.kind);
      finish(pass, free_[rank]);
    }
    return next_[rank] != before;
  }

  void finish(const Pass& pass, std::int64_t end) {
    const auto count = [&](std::vector<Shards>& shards) {
      Shards& all = shards[unit_of(pass.microbatch, pass.slice)];
      ++all.count;
      all.end = std::max(all.end, end);
    };
    switch (pass.kind) {
      case PassKind::kForward:
        forward_[grid_.index(pass)] = end;
        break;
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        backward_[grid_.index(pass)] = end;
        break;
      case PassKind::kEmbedForward:
        count(embed_);
        break;
      case PassKind::kVocabForward:
        count(logits_);
        break;
      case PassKind::kVocabBackward:
        count(gradient_);
        break;
      default:
        break;
    }
  }

  const Schedule& schedule_;
  const VocabPasses& passes_;
  PassGrid grid_;
  std::vector<std::int64_t> forward_, backward_;
  std::vector<Shards> embed_, logits_, gradient_;  // per microbatch and slice
  std::vector<std::size_t> next_;
  std::vector<std::int64_t> free_;
};

}  // namespace

bool VocabPasses::operator()(Collective kind) const {
  switch (kind) {
    case Collective::kNone:
      return false;
    case Collective::kReduceEmbedding:
      return has_embedding;
    case Collective::kBroadcastHidden:
    case Collective::kGatherStatistics:
      return has_output;
    case Collective::kReduceHiddenGradient:
      return has_output && !forward_only;
    case Collective::kBroadcastEmbeddingGradient:
      return has_embedding && !forward_only;
  }
  return false;
}

std::array<Collective, 2> VocabPasses::made_by(const Pass& pass) const {
  Collective first = Collective::kNone, second = Collective::kNone;
  switch (pass.kind) {
    case PassKind::kEmbedForward:
      first = Collective::kReduceEmbedding;
      break;
    case PassKind::kForward:
      if (pass.stage + 1 == num_stages) first = Collective::kBroadcastHidden;
      break;
    case PassKind::kVocabForward:
      first = Collective::kGatherStatistics;
      if (form != VocabForm::kParallel1) second = Collective::kReduceHiddenGradient;
      break;
    case PassKind::kVocabBackward:
      if (form == VocabForm::kParallel1) first = Collective::kReduceHiddenGradient;
      break;
    case PassKind::kBackward:
    case PassKind::kBackwardInput:
      if (pass.stage == 0) first = Collective::kBroadcastEmbeddingGradient;
      break;
    default:
      break;
  }
  return {(*this)(first) ? first : Collective::kNone, (*this)(second) ? second : Collective::kNone};
}

std::array<Collective, 2> VocabPasses::needed_by(const Pass& pass) const {
  Collective first = Collective::kNone, second = Collective::kNone;
  switch (pass.kind) {
    case PassKind::kForward:
      if (pass.stage == 0) first = Collective::kReduceEmbedding;
      break;
    case PassKind::kVocabForward:
      first = Collective::kBroadcastHidden;
      break;
    case PassKind::kVocabBackward:
      first = Collective::kGatherStatistics;
      break;
    case PassKind::kBackward:
    case PassKind::kBackwardInput:
      if (pass.stage + 1 == num_stages) {
        first = Collective::kGatherStatistics;
        second = Collective::kReduceHiddenGradient;
      }
      break;
    case PassKind::kEmbedBackward:
      first = Collective::kBroadcastEmbeddingGradient;
      break;
    default:
      break;
  }
  return {(*this)(first) ? first : Collective::kNone, (*this)(second) ? second : Collective::kNone};
}

VocabPasses find_vocab_passes(const Schedule& schedule) {
  VocabPasses found{.num_stages = schedule.num_stages(),
                    .forward_only = schedule.forward_only,
                    .form = schedule.vocab};
  for (const std::vector<Pass>& passes : schedule.ranks) note(found, passes);
  return found;
}

VocabPasses find_vocab_passes(const Program& program) {
  VocabPasses found{.num_stages = program.num_stages(),
                    .forward_only = program.forward_only,
                    .form = program.vocab};
  for (const RankProgram& rank : program.ranks) {
    for (const Action& action : rank.actions) {
      if (action.kind == ActionKind::kPass) note(found, std::array{action.pass});
    }
  }
  return found;
}

std::vector<CollectiveId> order_collectives(const Schedule& schedule, const VocabPasses& passes) {
  if (!passes.any()) return {};
  NominalClock clock(schedule, passes);
  clock.run();
  std::vector<std::tuple<std::int64_t, CollectiveId>> timed;
  for (int kind = 1; kind < kNumCollectives; ++kind) {
    if (!passes(static_cast<Collective>(kind))) continue;
    for (int microbatch = 0; microbatch < schedule.num_microbatches; ++microbatch) {
      for (int slice = 0; slice < schedule.num_slices; ++slice) {
        const CollectiveId id{static_cast<Collective>(kind), microbatch, slice};
        timed.emplace_back(clock.ready(id), id);
      }
    }
  }
  std::sort(timed.begin(), timed.end());
  std::vector<CollectiveId> order;
  order.reserve(timed.size());
  for (const auto& [time, id] : timed) order.push_back(id);
  return order;
}

CollectivePlacer::CollectivePlacer(const Schedule& schedule, const VocabPasses& passes,
                                   const std::vector<CollectiveId>& order, int rank)
    : schedule_(schedule), passes_(passes), order_(order), rank_(rank) {
  if (order.empty()) return;
  const std::size_t num_slots = unit(static_cast<Collective>(kNumCollectives), 0, 0);
  place_in_order_.assign(num_slots, kNoAction);
  producer_.assign(num_slots, kNoAction);
  posted_.assign(num_slots, kNoAction);
  producer_kind_.assign(num_slots, PassKind::kBackward);
  for (std::size_t i = 0; i < order.size(); ++i) {
    place_in_order_[unit(order[i].kind, order[i].microbatch, order[i].slice)] =
        static_cast<std::int32_t>(i);
  }
}

std::size_t CollectivePlacer::unit(Collective kind, int microbatch, int slice) const {
  return (static_cast<std::size_t>(kind) * static_cast<std::size_t>(schedule_.num_microbatches) +
          static_cast<std::size_t>(microbatch)) *
             static_cast<std::size_t>(schedule_.num_slices) +
         static_cast<std::size_t>(slice);
}

// Whether a pass of this rank makes what the collective carries.
bool CollectivePlacer::has_producer(Collective kind) const {
  switch (kind) {
    case Collective::kBroadcastHidden:
      return schedule_.placement.rank_of(schedule_.num_stages() - 1) == rank_;
    case Collective::kBroadcastEmbeddingGradient:
      return schedule_.placement.rank_of(0) == rank_;
    default:
      return true;
  }
}

void CollectivePlacer::post_through(RankProgram& out, std::size_t last) {
  for (; next_ <= last; ++next_) {
    const CollectiveId& id = order_[next_];
    const std::size_t at = unit(id.kind, id.microbatch, id.slice);
    Action action{.kind = ActionKind::kCollective,
                  .lane = Lane::kVocabulary,
                  .collective = id.kind,
                  .pass = {.microbatch = id.microbatch, .slice = id.slice}};
    const int last_stage = schedule_.num_stages() - 1;
    switch (id.kind) {
      case Collective::kReduceEmbedding:
        action.peer = schedule_.placement.rank_of(0);
        action.pass.kind = PassKind::kEmbedForward;
        action.pass.stage = rank_;
        break;
      case Collective::kBroadcastHidden:
        action.peer = schedule_.placement.rank_of(last_stage);
        action.pass.kind = PassKind::kForward;
        action.pass.stage = last_stage;
        break;
      case Collective::kGatherStatistics:
        action.pass.kind = PassKind::kVocabForward;
        action.pass.stage = rank_;
        break;
      case Collective::kReduceHiddenGradient:
        action.peer = schedule_.placement.rank_of(last_stage);
        action.pass.kind = passes_.form == VocabForm::kParallel1 ? PassKind::kVocabBackward
                                                                 : PassKind::kVocabForward;
        action.pass.stage = rank_;
        break;
      default:
        action.peer = schedule_.placement.rank_of(0);
        action.pass.kind = PassKind::kBackward;
        break;
    }
    if (has_producer(id.kind)) {
      SLUICE_CHECK(producer_[at] != kNoAction,
                   "rank {} would issue \"{}\" before the pass that makes it", rank_,
                   to_string(action, schedule_.num_slices > 1));
      if (id.kind == Collective::kBroadcastEmbeddingGradient) action.pass.kind = producer_kind_[at];
      out.dependencies.push_back(producer_[at]);
    }
    posted_[at] = static_cast<std::int32_t>(out.actions.size());
    out.actions.push_back(action);
    out.dependency_begin.push_back(static_cast<std::int32_t>(out.dependencies.size()));
  }
}

std::array<std::int32_t, 2> CollectivePlacer::before(RankProgram& out, const Pass& pass) {
  std::array<std::int32_t, 2> needed = {kNoAction, kNoAction};
  if (order_.empty()) return needed;
  const std::array<Collective, 2> kinds = passes_.needed_by(pass);
  for (std::size_t i = 0; i < 2; ++i) {
    if (kinds[i] == Collective::kNone) continue;
    const std::size_t at = unit(kinds[i], pass.microbatch, pass.slice);
    const auto place = static_cast<std::size_t>(place_in_order_[at]);
    if (place >= next_) post_through(out, place);
    needed[i] = posted_[at];
  }
  return needed;
}

void CollectivePlacer::after(RankProgram& out, const Pass& pass, std::int32_t position) {
  if (order_.empty()) return;
  bool makes_one = false;
  for (const Collective kind : passes_.made_by(pass)) {
    if (kind == Collective::kNone) continue;
    const std::size_t at = unit(kind, pass.microbatch, pass.slice);
    producer_[at] = position;
    producer_kind_[at] = pass.kind;
    makes_one = true;
  }
  if (!makes_one) return;
  // What only others make is posted along, not ahead: its buffer is needed from then on.
  std::size_t end = next_;
  for (std::size_t i = next_; i < order_.size(); ++i) {
    if (!has_producer(order_[i].kind)) continue;
    if (producer_[unit(order_[i].kind, order_[i].microbatch, order_[i].slice)] == kNoAction) break;
    end = i + 1;
  }
  if (end > next_) post_through(out, end - 1);
}

void CollectivePlacer::finish(RankProgram& out) {
  if (next_ < order_.size()) post_through(out, order_.size() - 1);
}

}  // namespace sluice
