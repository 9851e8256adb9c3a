#include "sluice/schedule/walk.h"

#include <cstdint>
#include <utility>

namespace sluice {
namespace {

enum Done : std::uint8_t { kForwardDone = 1, kInputDone = 2 };

class Walker {
 public:
  explicit Walker(const Schedule& schedule)
      : schedule_(schedule),
        index_(schedule),
        done_(index_.size()),
        waiting_(schedule.ranks.size(), 0) {
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
      if (!index_.contains(pass) || !is_stage_pass(pass.kind)) continue;
      if (!can_run(pass, result_.missing[r])) {
        waiting_[r] = 1;
        break;
      }
      finish(pass);
    }
    result_.stop[r] = static_cast<int>(position);
  }

  bool has(int stage, int microbatch, int slice, Done what) const {
    return (done_[index_(stage, microbatch, slice)] & what) != 0;
  }

  bool can_run(const Pass& pass, Pass& missing) const {
    const auto needs = [&](PassKind kind, int stage, int slice, Done what) {
      if (has(stage, pass.microbatch, slice, what)) return true;
      missing = {.kind = kind, .stage = stage, .microbatch = pass.microbatch, .slice = slice};
      return false;
    };
    const auto [kind, stage, microbatch, slice] = pass;
    switch (kind) {
      case PassKind::kForward:
        return (stage == 0 || needs(kind, stage - 1, slice, kForwardDone)) &&
               (slice == 0 || needs(kind, stage, slice - 1, kForwardDone));
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        // The kind of the neighbours' backward is not known here; validate() looks it up.
        return needs(PassKind::kForward, stage, slice, kForwardDone) &&
               (stage == index_.num_stages - 1 || needs(kind, stage + 1, slice, kInputDone)) &&
               (slice == index_.num_slices - 1 || needs(kind, stage, slice + 1, kInputDone));
      case PassKind::kBackwardWeight:
        return needs(PassKind::kBackwardInput, stage, slice, kInputDone);
      default:
        return needs(PassKind::kForward, stage, slice, kForwardDone);
    }
  }

  void finish(const Pass& pass) {
    std::uint8_t& done = done_[index_(pass)];
    if (pass.kind == PassKind::kForward) {
      done |= kForwardDone;
      wake(pass.stage + 1);
    } else if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardInput) {
      done |= kInputDone;
      wake(pass.stage - 1);
    }
  }

  // Puts the rank of `stage` back to work if it stopped. Every finished pass wakes at most one
  // rank, so the walk is linear in the number of passes.
  void wake(int stage) {
    if (stage < 0 || stage >= index_.num_stages) return;
    const int rank = schedule_.placement.rank_of(stage);
    if (waiting_[static_cast<std::size_t>(rank)] == 0) return;
    waiting_[static_cast<std::size_t>(rank)] = 0;
    ready_.push_back(rank);
  }

  const Schedule& schedule_;
  UnitIndex index_;
  std::vector<std::uint8_t> done_;     // Done bits of each unit
  std::vector<std::uint8_t> waiting_;  // per rank: stopped and not in ready_
  std::vector<int> ready_;
  Walk result_;
};

}  // namespace

bool UnitIndex::fits_in_memory(std::int64_t num_passes) const {
  const double num_units = static_cast<double>(num_stages) * num_microbatches * num_slices;
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

Walk walk(const Schedule& schedule) { return Walker(schedule).run(); }

}  // namespace sluice
