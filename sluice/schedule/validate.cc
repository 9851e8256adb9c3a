#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "sluice/schedule/schedule.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

// More problems than this help nobody; the last one then says how many were left out.
constexpr std::size_t kMaxProblems = 1000;

std::uint16_t bit(PassKind kind) {
  return static_cast<std::uint16_t>(1U << static_cast<unsigned>(kind));
}

class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule), index_(schedule) {}

  std::vector<Problem> run() {
    if (check_sizes()) {
      present_.assign(index_.size(), 0);
      collect();
      check_missing();
      check_order();
      check_deadlock();
    }
    if (num_left_out_ > 0) {
      problems_.push_back({.text = fmt::format("and {} more problems", num_left_out_)});
    }
    return std::move(problems_);
  }

 private:
  void add(int rank, int position, std::string text) {
    if (problems_.size() >= kMaxProblems) {
      ++num_left_out_;
      return;
    }
    problems_.push_back({.rank = rank, .position = position, .text = std::move(text)});
  }

  std::string show(const Pass& pass) const { return to_string(pass, schedule_.num_slices > 1); }

  /// False when nothing else can be checked.
  bool check_sizes();
  void collect();
  bool check_place(int rank, int position, const Pass& pass);
  void check_missing();
  void check_missing_shards(PassKind forward, PassKind backward);
  template <typename Broken>
  void report_units(int place, PassKind kind, std::string_view what, const Broken& broken);
  void check_order();
  void check_pass_order(int rank, int position, const Pass& pass, std::vector<std::uint16_t>& seen);
  void check_gradient_order(int rank, int position, const Pass& pass, std::vector<Pass>& last);
  void check_deadlock();
  Pass actual(Pass waited_for) const;
  int position_on(int rank, const Pass& pass) const;
  std::string describe_wait(int rank, const Walk& walk) const;

  bool present(PassKind kind, int stage, int microbatch, int slice) const {
    return (present_[index_(stage, microbatch, slice)] & bit(kind)) != 0;
  }

  const Schedule& schedule_;
  UnitIndex index_;
  std::vector<std::uint16_t> present_;  // per unit: bit(kind) of every stage pass there is
  std::uint16_t used_ = 0;              // bit(kind) of every kind that occurs
  std::vector<Pass> misplaced_;         // on a rank that does not hold their stage
  std::vector<Problem> problems_;
  std::int64_t num_left_out_ = 0;
};

bool Validator::check_sizes() {
  if (schedule_.num_microbatches < 1 || schedule_.num_slices < 1 || schedule_.num_stages() < 1) {
    add(-1, -1,
        fmt::format(
            "a schedule needs at least one stage, microbatch and slice; this one has {}, {} "
            "and {}",
            schedule_.num_stages(), schedule_.num_microbatches, schedule_.num_slices));
    return false;
  }
  if (static_cast<int>(schedule_.ranks.size()) != schedule_.num_ranks()) {
    add(-1, -1,
        fmt::format("the placement has {} ranks but there are passes for {}", schedule_.num_ranks(),
                    schedule_.ranks.size()));
    return false;
  }
  if (!index_.fits_in_memory(schedule_.num_passes())) {
    add(-1, -1,
        fmt::format(
            "{} stages, {} microbatches and {} slices need at least {:.0f} passes, but there "
            "are {}: an index is far too large or most passes are missing",
            schedule_.num_stages(), schedule_.num_microbatches, schedule_.num_slices,
            static_cast<double>(schedule_.num_stages()) * schedule_.num_microbatches *
                schedule_.num_slices * (schedule_.forward_only ? 1 : 2),
            schedule_.num_passes()));
    return false;
  }
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
    if (schedule_.placement.stages_of(rank).empty()) {
      add(rank, -1, fmt::format("rank {} holds no stage: remove it", rank));
    }
  }
  return true;
}

bool Validator::check_place(int rank, int position, const Pass& pass) {
  const bool forward = pass.kind == PassKind::kForward || pass.kind == PassKind::kEmbedForward ||
                       pass.kind == PassKind::kVocabForward;
  if (schedule_.forward_only && !forward) {
    add(rank, position, fmt::format("{} has no place in a forward-only schedule", show(pass)));
    return false;
  }
  if (!index_.contains(pass)) {
    add(rank, position,
        fmt::format(
            "{} is outside the schedule, which has {} ranks, {} stages, {} microbatches and {} "
            "slices",
            to_string(pass, true), index_.num_ranks, index_.num_stages, index_.num_microbatches,
            index_.num_slices));
    return false;
  }
  const int home = home_rank(schedule_, pass);
  if (home != rank) {
    const std::string what = is_stage_pass(pass.kind) ? fmt::format("stage {}", pass.stage)
                                                      : "that shard of the vocabulary";
    add(rank, position,
        fmt::format("{} is on rank {}, but {} is on rank {}", show(pass), rank, what, home));
    misplaced_.push_back(pass);
  }
  return true;
}

void Validator::collect() {
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
    const std::vector<Pass>& passes = schedule_.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const Pass& pass = passes[i];
      if (!check_place(rank, static_cast<int>(i), pass)) continue;
      std::uint16_t& kinds = present_[index_(pass)];
      if ((kinds & bit(pass.kind)) != 0) {
        add(rank, static_cast<int>(i), fmt::format("{} occurs more than once", show(pass)));
      }
      kinds = static_cast<std::uint16_t>(kinds | bit(pass.kind));
      used_ = static_cast<std::uint16_t>(used_ | bit(pass.kind));
    }
  }
}

/// One rule that the kinds of passes of a unit must keep.
struct Rule {
  const char* text;
  PassKind kind;  // what to name
  bool (*broken)(std::uint16_t kinds, bool forward_only);
};

constexpr std::uint16_t kB = 1U << static_cast<unsigned>(PassKind::kBackward);
constexpr std::uint16_t kI = 1U << static_cast<unsigned>(PassKind::kBackwardInput);
constexpr std::uint16_t kW = 1U << static_cast<unsigned>(PassKind::kBackwardWeight);
constexpr std::uint16_t kF = 1U << static_cast<unsigned>(PassKind::kForward);
constexpr std::uint16_t kD = 1U << static_cast<unsigned>(PassKind::kOffload);
constexpr std::uint16_t kU = 1U << static_cast<unsigned>(PassKind::kReload);

const std::array<Rule, 7> kRules{{
    {"is missing", PassKind::kForward, [](std::uint16_t k, bool) { return (k & kF) == 0; }},
    {"is missing, and no I with a W stands for it", PassKind::kBackward,
     [](std::uint16_t k, bool forward_only) { return !forward_only && (k & (kB | kI | kW)) == 0; }},
    {"is there together with an I or W of the same microbatch", PassKind::kBackward,
     [](std::uint16_t k, bool) { return (k & kB) != 0 && (k & (kI | kW)) != 0; }},
    {"is missing: its I is there", PassKind::kBackwardWeight,
     [](std::uint16_t k, bool) { return (k & (kB | kI | kW)) == kI; }},
    {"is missing: its W is there", PassKind::kBackwardInput,
     [](std::uint16_t k, bool) { return (k & (kB | kI | kW)) == kW; }},
    {"is missing: the activations are offloaded (D) and never come back", PassKind::kReload,
     [](std::uint16_t k, bool) { return (k & (kD | kU)) == kD; }},
    {"is missing: the activations are reloaded (U) but were never offloaded", PassKind::kOffload,
     [](std::uint16_t k, bool) { return (k & (kD | kU)) == kU; }},
}};

// Neighbouring microbatches (and slices) that break the same rule make one problem.
template <typename Broken>
void Validator::report_units(int place, PassKind kind, std::string_view what,
                             const Broken& broken) {
  const std::uint16_t* kinds = present_.data() + index_(place, 0, 0);
  const bool is_stage = place < index_.num_stages;
  const auto pass_at = [&](std::size_t unit) {
    const auto slices = static_cast<std::size_t>(index_.num_slices);
    return Pass{.kind = kind,
                .stage = is_stage ? place : place - index_.num_stages,
                .microbatch = static_cast<std::int32_t>(unit / slices),
                .slice = static_cast<std::int32_t>(unit % slices)};
  };
  for (std::size_t unit = 0; unit < index_.units_per_place(); ++unit) {
    if (!broken(kinds[unit])) continue;
    const std::size_t first = unit;
    while (unit + 1 < index_.units_per_place() && broken(kinds[unit + 1])) ++unit;
    const std::string passes =
        first == unit ? show(pass_at(first))
                      : fmt::format("each of {} to {}", show(pass_at(first)), show(pass_at(unit)));
    add(home_rank(schedule_, pass_at(first)), -1, fmt::format("{} {}", passes, what));
  }
}

void Validator::check_missing() {
  for (int stage = 0; stage < index_.num_stages; ++stage) {
    for (const Rule& rule : kRules) {
      report_units(stage, rule.kind, rule.text,
                   [&](std::uint16_t kinds) { return rule.broken(kinds, schedule_.forward_only); });
    }
  }
  check_missing_shards(PassKind::kEmbedForward, PassKind::kEmbedBackward);
  check_missing_shards(PassKind::kVocabForward, PassKind::kVocabBackward);
}

void Validator::check_missing_shards(PassKind forward, PassKind backward) {
  if ((used_ & (bit(forward) | bit(backward))) == 0) return;
  for (const PassKind kind : {forward, backward}) {
    if (kind == backward && schedule_.forward_only) continue;
    for (int rank = 0; rank < index_.num_ranks; ++rank) {
      report_units(index_.num_stages + rank, kind,
                   "is missing: every rank holds a shard of the vocabulary",
                   [&](std::uint16_t kinds) { return (kinds & bit(kind)) == 0; });
    }
  }
}

void Validator::check_order() {
  std::vector<std::uint16_t> seen(present_.size(), 0);
  const auto see = [&](const Pass& pass) {
    std::uint16_t& kinds = seen[index_(pass)];
    kinds = static_cast<std::uint16_t>(kinds | bit(pass.kind));
  };
  // Where a misplaced pass stands among its stage's passes means nothing.
  for (const Pass& pass : misplaced_) see(pass);
  std::vector<Pass> last_weight(static_cast<std::size_t>(index_.num_stages),
                                Pass{.microbatch = -1});
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
    const std::vector<Pass>& passes = schedule_.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const Pass& pass = passes[i];
      if (!index_.contains(pass)) continue;
      if (home_rank(schedule_, pass) != rank) continue;  // reported as misplaced
      check_pass_order(rank, static_cast<int>(i), pass, seen);
      check_gradient_order(rank, static_cast<int>(i), pass, last_weight);
      see(pass);
    }
  }
}

void Validator::check_pass_order(int rank, int position, const Pass& pass,
                                 std::vector<std::uint16_t>& seen) {
  // A pass that is nowhere is reported as missing; here the order of those that are there counts.
  const auto needs = [&](PassKind kind, int slice) {
    const Pass first{
        .kind = kind, .stage = pass.stage, .microbatch = pass.microbatch, .slice = slice};
    const std::size_t unit = index_(first);
    if ((seen[unit] & bit(kind)) != 0 || (present_[unit] & bit(kind)) == 0) return;
    add(rank, position, fmt::format("{} comes before {}", show(pass), show(first)));
  };
  switch (pass.kind) {
    case PassKind::kForward:
      if (pass.slice > 0) needs(PassKind::kForward, pass.slice - 1);
      break;
    case PassKind::kBackward:
    case PassKind::kBackwardInput:
      needs(PassKind::kForward, pass.slice);
      needs(PassKind::kReload, pass.slice);
      if (pass.slice + 1 < index_.num_slices) {
        needs(PassKind::kBackward, pass.slice + 1);
        needs(PassKind::kBackwardInput, pass.slice + 1);
      }
      break;
    case PassKind::kBackwardWeight:
      needs(PassKind::kBackwardInput, pass.slice);
      break;
    case PassKind::kOffload:
      needs(PassKind::kForward, pass.slice);
      break;
    case PassKind::kReload:
      needs(PassKind::kOffload, pass.slice);
      break;
    case PassKind::kEmbedBackward:
      needs(PassKind::kEmbedForward, pass.slice);
      break;
    case PassKind::kVocabBackward:
      needs(PassKind::kVocabForward, pass.slice);
      break;
    case PassKind::kEmbedForward:
    case PassKind::kVocabForward:
      break;
  }
}

void Validator::check_gradient_order(int rank, int position, const Pass& pass,
                                     std::vector<Pass>& last) {
  if (pass.kind != PassKind::kBackward && pass.kind != PassKind::kBackwardWeight) return;
  Pass& before = last[static_cast<std::size_t>(pass.stage)];
  const bool ascending = pass.microbatch > before.microbatch ||
                         (pass.microbatch == before.microbatch && pass.slice <= before.slice);
  if (!ascending) {
    add(rank, position,
        fmt::format("{} comes after {}: gradients of a stage add up microbatch ascending, slice "
                    "descending",
                    show(pass), show(before)));
  }
  before = pass;
}

// A backward is waited for whatever its kind; this is the kind the schedule has.
Pass Validator::actual(Pass waited_for) const {
  if (waited_for.kind != PassKind::kBackward && waited_for.kind != PassKind::kBackwardInput) {
    return waited_for;
  }
  const std::uint16_t kinds = present_[index_(waited_for)];
  if ((kinds & kB) != 0) waited_for.kind = PassKind::kBackward;
  if ((kinds & kI) != 0) waited_for.kind = PassKind::kBackwardInput;
  return waited_for;
}

int Validator::position_on(int rank, const Pass& pass) const {
  const std::vector<Pass>& passes = schedule_.ranks[static_cast<std::size_t>(rank)];
  const auto found = std::find(passes.begin(), passes.end(), pass);
  return found == passes.end() ? -1 : static_cast<int>(found - passes.begin());
}

std::string Validator::describe_wait(int rank, const Walk& walk) const {
  const auto r = static_cast<std::size_t>(rank);
  const Pass& stuck = schedule_.ranks[r][static_cast<std::size_t>(walk.stop[r])];
  const Pass awaited = actual(walk.missing[r]);
  const int other = home_rank(schedule_, awaited);
  const int position = position_on(other, awaited);
  std::string text = fmt::format("rank {} stops at {} (position {}), which needs {}", rank,
                                 show(stuck), walk.stop[r], show(awaited));
  if (position < 0) return text + fmt::format(", and rank {} has none", other);
  if (other == rank) return text + fmt::format(", which comes later (position {})", position);
  const auto o = static_cast<std::size_t>(other);
  if (static_cast<std::size_t>(walk.stop[o]) == schedule_.ranks[o].size()) return text;
  const Pass& blocker = schedule_.ranks[o][static_cast<std::size_t>(walk.stop[o])];
  return text + fmt::format(" of rank {} (position {}), which stops at {} (position {})", other,
                            position, show(blocker), walk.stop[o]);
}

void Validator::check_deadlock() {
  const Walk reached = walk(schedule_);
  const std::size_t num_ranks = schedule_.ranks.size();
  const auto is_stuck = [&](std::size_t rank) {
    return static_cast<std::size_t>(reached.stop[rank]) < schedule_.ranks[rank].size();
  };
  const auto next = [&](std::size_t rank) {
    // A pass that is nowhere leads to no rank.
    const Pass awaited = actual(reached.missing[rank]);
    if ((present_[index_(awaited)] & bit(awaited.kind)) == 0) return rank;
    return static_cast<std::size_t>(home_rank(schedule_, awaited));
  };
  // A stopped rank waits for one pass of one rank: follow that to find the rings.
  std::vector<std::size_t> visit(num_ranks, 0);  // the round in which a rank was seen, 0: not yet
  std::vector<std::uint8_t> in_ring(num_ranks, 0);
  for (std::size_t start = 0; start < num_ranks; ++start) {
    std::size_t rank = start;
    while (is_stuck(rank) && visit[rank] == 0) {
      visit[rank] = start + 1;
      rank = next(rank);
    }
    const bool is_ring = is_stuck(rank) && visit[rank] == start + 1 && next(rank) != rank;
    if (!is_ring) continue;
    std::string text = "deadlock: ";
    std::size_t member = rank;
    do {
      if (member != rank) text += "; ";
      text += describe_wait(static_cast<int>(member), reached);
      in_ring[member] = 1;
      member = next(member);
    } while (member != rank);
    add(static_cast<int>(rank), reached.stop[rank], std::move(text));
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (!is_stuck(rank) || in_ring[rank] != 0) continue;
    const Pass& stuck = schedule_.ranks[rank][static_cast<std::size_t>(reached.stop[rank])];
    // Within a stage the pass waited for is missing or comes later, which is reported already.
    const Pass& awaited = reached.missing[rank];
    if (is_stage_pass(awaited.kind) == is_stage_pass(stuck.kind) && awaited.stage == stuck.stage) {
      continue;
    }
    add(static_cast<int>(rank), reached.stop[rank], describe_wait(static_cast<int>(rank), reached));
  }
}

}  // namespace

std::vector<Problem> validate(const Schedule& schedule) { return Validator(schedule).run(); }

}  // namespace sluice
