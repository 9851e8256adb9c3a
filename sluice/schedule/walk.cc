#include "sluice/schedule/walk.h"

#include <cstdint>
#include <utility>

namespace sluice {
namespace {

enum Done : std::uint8_t {
  kForwardDone = 1,
  kInputDone = 2,
  kEmbedDone = 4,
  kLogitsDone = 8,
  kGradientDone = 16
};

class Walker {
 public:
  explicit Walker(const Schedule& schedule)
      : schedule_(schedule),
        index_(schedule),
        done_(index_.size()),
        waiting_(schedule.ranks.size(), 0) {
    for (const std::vector<Pass>& passes : schedule.ranks) {
      for (const Pass& pass : passes) {
        has_embed_ = has_embed_ || pass.kind == PassKind::kEmbedForward;
        has_logits_ = has_logits_ || pass.kind == PassKind::kVocabForward;
      }
    }
    if (has_embed_) num_embeds_.resize(index_.units_per_place());
    if (has_logits_) num_logits_.resize(index_.units_per_place());
    if (has_logits_ && schedule.vocab == VocabForm::kParallel1) {
      num_gradients_.resize(index_.units_per_place());
    }
    result_.stop.resize(schedule.ranks.size());
    result_.missing.resize(schedule.ranks.size());
  }

  Walk run() {
    for (int rank = schedule_.num_ranks() - 1; rank >= 0; --rank) ready_.push_back(rank);
    do {
      while (!ready_.empty()) {
        const int rank = ready_.back();
        ready_.pop_back();
        advance(rank);
      }
      // Nobody wakes the rank of a misplaced pass; try what still waits until nothing moves.
    } while (retry_waiting());
    return std::move(result_);
  }

 private:
  bool retry_waiting() {
    bool moved = false;
    for (std::size_t r = 0; r < waiting_.size(); ++r) {
      if (waiting_[r] == 0) continue;
      const int before = result_.stop[r];
      advance(static_cast<int>(r));
      moved = moved || result_.stop[r] != before;
    }
    return moved;
  }

  void advance(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::vector<Pass>& passes = schedule_.ranks[r];
    auto position = static_cast<std::size_t>(result_.stop[r]);
    waiting_[r] = 0;
    for (; position < passes.size(); ++position) {
      const Pass& pass = passes[position];
      if (!index_.contains(pass)) continue;
      if (!can_run(pass, result_.missing[r])) {
        waiting_[r] = 1;
        break;
      }
      finish(pass);
    }
    result_.stop[r] = static_cast<int>(position);
  }

  bool can_run(const Pass& pass, Pass& missing) const {
    const int last_stage = index_.num_stages - 1;
    const auto [kind, stage, microbatch, slice] = pass;
    // The kind of a neighbour's backward is not known here; validate() looks it up.
    const auto needs = [&](PassKind other, int place, int other_slice, Done what) {
      const Pass first{
          .kind = other, .stage = place, .microbatch = pass.microbatch, .slice = other_slice};
      if ((done_[index_(first)] & what) != 0) return true;
      missing = first;
      return false;
    };
    switch (kind) {
      case PassKind::kForward:
        return (stage == 0 ? needs_shards(pass, PassKind::kEmbedForward, kEmbedDone, missing)
                           : needs(kind, stage - 1, slice, kForwardDone)) &&
               (slice == 0 || needs(kind, stage, slice - 1, kForwardDone));
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        return needs(PassKind::kForward, stage, slice, kForwardDone) &&
               (stage == last_stage
                    ? needs_shards(pass, PassKind::kVocabForward, kLogitsDone, missing) &&
                          needs_shards(pass, PassKind::kVocabBackward, kGradientDone, missing)
                    : needs(kind, stage + 1, slice, kInputDone)) &&
               (slice == index_.num_slices - 1 || needs(kind, stage, slice + 1, kInputDone));
      case PassKind::kBackwardWeight:
        return needs(PassKind::kBackwardInput, stage, slice, kInputDone);
      case PassKind::kEmbedForward:
        return true;
      case PassKind::kEmbedBackward:
        return needs(PassKind::kBackwardInput, 0, slice, kInputDone);
      case PassKind::kVocabForward:
        return needs(PassKind::kForward, last_stage, slice, kForwardDone);
      case PassKind::kVocabBackward:
        return needs_shards(pass, PassKind::kVocabForward, kLogitsDone, missing);
      case PassKind::kOffload:
      case PassKind::kReload:
        return needs(PassKind::kForward, stage, slice, kForwardDone);
    }
    return true;
  }

  // Whether every rank has run its E, S or T; trivially so when the schedule has none, or nothing
  // waits for them.
  bool needs_shards(const Pass& pass, PassKind kind, Done what, Pass& missing) const {
    const std::vector<int>& counts = what == kEmbedDone    ? num_embeds_
                                     : what == kLogitsDone ? num_logits_
                                                           : num_gradients_;
    if (counts.empty() || counts[index_(0, pass.microbatch, pass.slice)] == index_.num_ranks) {
      return true;
    }
    Pass shard{.kind = kind, .stage = 0, .microbatch = pass.microbatch, .slice = pass.slice};
    while ((done_[index_(shard)] & what) != 0) ++shard.stage;
    missing = shard;
    return false;
  }

  void finish(const Pass& pass) {
    switch (pass.kind) {
      case PassKind::kForward:
        done_[index_(pass)] |= kForwardDone;
        if (pass.stage + 1 < index_.num_stages) {
          wake(schedule_.placement.rank_of(pass.stage + 1));
        } else if (has_logits_) {
          wake_all();
        }
        break;
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        done_[index_(pass)] |= kInputDone;
        if (pass.stage > 0) {
          wake(schedule_.placement.rank_of(pass.stage - 1));
        } else if (has_embed_) {
          wake_all();
        }
        break;
      case PassKind::kEmbedForward:
        finish_shard(pass, kEmbedDone, num_embeds_);
        break;
      case PassKind::kVocabForward:
        finish_shard(pass, kLogitsDone, num_logits_);
        break;
      case PassKind::kVocabBackward:
        if (!num_gradients_.empty()) finish_shard(pass, kGradientDone, num_gradients_);
        break;
      default:
        break;
    }
  }

  void finish_shard(const Pass& pass, Done what, std::vector<int>& counts) {
    std::uint8_t& done = done_[index_(pass)];
    if ((done & what) != 0) return;  // a doubled pass
    done = static_cast<std::uint8_t>(done | what);
    if (++counts[index_(0, pass.microbatch, pass.slice)] == index_.num_ranks) wake_all();
  }

  // Puts a rank back to work if it stopped. A finished pass wakes at most one rank, and one pass
  // per microbatch and slice all ranks, so the walk is linear in the number of passes.
  void wake(int rank) {
    if (waiting_[static_cast<std::size_t>(rank)] == 0) return;
    waiting_[static_cast<std::size_t>(rank)] = 0;
    ready_.push_back(rank);
  }
  void wake_all() {
    for (int rank = 0; rank < index_.num_ranks; ++rank) wake(rank);
  }

  const Schedule& schedule_;
  UnitIndex index_;
  bool has_embed_ = false;
  bool has_logits_ = false;
  std::vector<std::uint8_t> done_;     // Done bits of each unit
  std::vector<int> num_embeds_;        // per microbatch and slice: ranks that ran E
  std::vector<int> num_logits_;        // the same for S
  std::vector<int> num_gradients_;     // the same for T, where the last backward waits for it
  std::vector<std::uint8_t> waiting_;  // per rank: stopped and not in ready_
  std::vector<int> ready_;
  Walk result_;
};

}  // namespace

bool UnitIndex::fits_in_memory(std::int64_t num_passes) const {
  const double num_places = static_cast<double>(num_stages) + num_ranks;
  const double num_units = num_places * num_microbatches * num_slices;
  return num_units <= 8.0 * static_cast<double>(num_passes) + 4096.0;
}

bool is_stage_pass(PassKind kind) {
  switch (kind) {
    case PassKind::kEmbedForward:
    case PassKind::kEmbedBackward:
    case PassKind::kVocabForward:
    case PassKind::kVocabBackward:
      return false;
    default:
      return true;
  }
}

int home_rank(const Schedule& schedule, const Pass& pass) {
  return is_stage_pass(pass.kind) ? schedule.placement.rank_of(pass.stage) : pass.stage;
}

Walk walk(const Schedule& schedule) { return Walker(schedule).run(); }

}  // namespace sluice
