// The part of verify() about the vocabulary passes E, G, S and T and their collectives.
#include <fmt/format.h>

#include <array>
#include <optional>

#include "sluice/program/collectives.h"
#include "sluice/program/pass_grid.h"
#include "sluice/program/verify_impl.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

constexpr std::array<PassKind, 4> kShardKinds = {PassKind::kEmbedForward, PassKind::kEmbedBackward,
                                                 PassKind::kVocabForward, PassKind::kVocabBackward};

class Vocabulary : ProgramCheck {
 public:
  Vocabulary(const Program& program, std::vector<Problem>& problems)
      : ProgramCheck(program, problems),
        passes_(find_vocab_passes(program)),
        grid_{program.num_ranks(), program.num_microbatches, program.num_slices} {}

  bool run() {
    if (!passes_.any() && !has_collectives()) return true;
    const std::size_t before = problems_.size();
    for (int rank = 0; rank < program_.num_ranks(); ++rank) read_rank(rank);
    return problems_.size() == before;
  }

 private:
  bool has_collectives() const {
    for (const RankProgram& rank : program_.ranks) {
      for (const Action& action : rank.actions) {
        if (action.kind == ActionKind::kCollective) return true;
      }
    }
    return false;
  }

  void read_rank(int rank) {
    num_collectives_ = 0;
    seen_.assign(kShardKinds.size() * grid_.stage_stride(), 0);
    bool optimizer = false;
    const std::vector<Action>& list = actions(rank);
    for (std::size_t k = 0; k < list.size(); ++k) {
      const Action& action = list[k];
      optimizer |= action.kind == ActionKind::kOptimizer;
      if (action.kind == ActionKind::kCollective) {
        read_collective(rank, k);
      } else if (action.kind == ActionKind::kPass) {
        if (!is_stage_pass(action.pass.kind)) read_pass(rank, k, optimizer);
        check_needs(rank, k);
      }
    }
    check_complete(rank);
  }

  // The first rank gives the order; the others must have it too.
  void read_collective(int rank, std::size_t k) {
    const Action& action = actions(rank)[k];
    const CollectiveId id{action.collective, action.pass.microbatch, action.pass.slice};
    const std::size_t ordinal = num_collectives_++;
    if (action.lane != Lane::kVocabulary) {
      add(rank, k, "\"{}\" is on lane {} instead of vocabulary", text(action),
          to_string(action.lane));
    }
    if (!passes_(action.collective)) {
      return add(rank, k, "\"{}\": the program has no passes that it could belong to",
                 text(action));
    }
    check_carries(rank, k);
    if (rank == 0) {
      order_.push_back(id);
      first_.push_back(static_cast<std::int32_t>(k));
      return;
    }
    if (ordinal < order_.size() && order_[ordinal] == id) return;
    add(rank, k,
        "rank {} issues \"{}\" as its collective number {}, where the order of all ranks "
        "has {}",
        rank, text(action), ordinal + 1, expected(ordinal));
  }

  std::string expected(std::size_t ordinal) const {
    if (ordinal >= order_.size()) return "none";
    const CollectiveId& id = order_[ordinal];
    return fmt::format("\"{}\" of microbatch {}, slice {} (action {} of rank 0)",
                       to_string(id.kind), id.microbatch, id.slice, first_[ordinal]);
  }

  // A collective carries the result of a pass of this rank, which it then depends on, or comes from
  // elsewhere and depends on nothing.
  void check_carries(int rank, std::size_t k) {
    const Action& action = actions(rank)[k];
    const bool rooted = action.collective == Collective::kBroadcastHidden ||
                        action.collective == Collective::kBroadcastEmbeddingGradient;
    const int stage =
        action.collective == Collective::kBroadcastHidden ? program_.num_stages() - 1 : 0;
    const bool makes = !rooted || program_.placement.rank_of(stage) == rank;
    const auto dependencies = program_.ranks[index(rank)].dependencies_of(k);
    if (dependencies.empty() && !makes) return;
    if (dependencies.size() == 1 && makes) {
      const Action& made = actions(rank)[index(dependencies.front())];
      const auto kinds = passes_.made_by(made.pass);
      if (made.kind == ActionKind::kPass && made.pass.microbatch == action.pass.microbatch &&
          made.pass.slice == action.pass.slice &&
          (kinds[0] == action.collective || kinds[1] == action.collective)) {
        return;
      }
    }
    add(rank, k, "\"{}\" of rank {} must depend on {}", text(action), rank,
        makes ? "the pass that makes what it carries, and on nothing else" : "nothing");
  }

  void read_pass(int rank, std::size_t k, bool optimizer) {
    const Action& action = actions(rank)[k];
    const Pass& pass = action.pass;
    if (!grid_.contains(pass) || pass.stage != rank) {
      return add(rank, k, "{} stands on rank {}, but its shard of the vocabulary is on rank {}",
                 text(pass), rank, pass.stage);
    }
    const bool backward =
        pass.kind == PassKind::kEmbedBackward || pass.kind == PassKind::kVocabBackward;
    if (action.lane != Lane::kCompute) {
      add(rank, k, "{} is on lane {}, passes run on compute", text(pass), to_string(action.lane));
    }
    if (backward && program_.forward_only) {
      return add(rank, k, "{} in a program of forwards alone", text(pass));
    }
    if (backward && optimizer) {
      add(rank, k, "{} comes after the optimizer: its gradient is lost", text(pass));
    }
    std::uint8_t& seen = seen_[slot(pass.kind, pass)];
    if (seen != 0) return add(rank, k, "{} runs twice", text(pass));
    seen = 1;
    if (!backward) return;
    const PassKind forward =
        pass.kind == PassKind::kEmbedBackward ? PassKind::kEmbedForward : PassKind::kVocabForward;
    if (seen_[slot(forward, pass)] == 0) {
      add(rank, k, "{} comes before its {}", text(pass), letter(forward));
    }
  }

  // A pass must depend on every collective whose result it needs.
  void check_needs(int rank, std::size_t k) {
    const Pass& pass = actions(rank)[k].pass;
    for (const Collective kind : passes_.needed_by(pass)) {
      if (kind == Collective::kNone) continue;
      bool waits = false;
      for (const std::int32_t d : program_.ranks[index(rank)].dependencies_of(k)) {
        const Action& dependency = actions(rank)[index(d)];
        waits |= dependency.kind == ActionKind::kCollective && dependency.collective == kind &&
                 dependency.pass.microbatch == pass.microbatch &&
                 dependency.pass.slice == pass.slice;
      }
      if (!waits) {
        add(rank, k, "{} does not wait for \"{}\" of its microbatch", text(pass), to_string(kind));
      }
    }
  }

  void check_complete(int rank) {
    if (rank > 0 && num_collectives_ < order_.size()) {
      problems_.push_back({rank, -1,
                           fmt::format("rank {} issues {} collectives and ends, where the order of "
                                       "all ranks goes on with {}",
                                       rank, num_collectives_, expected(num_collectives_))});
    }
    for (const PassKind kind : kShardKinds) {
      const bool embedding = kind == PassKind::kEmbedForward || kind == PassKind::kEmbedBackward;
      const bool backward = kind == PassKind::kEmbedBackward || kind == PassKind::kVocabBackward;
      if (!(embedding ? passes_.has_embedding : passes_.has_output)) continue;
      if (backward && program_.forward_only) continue;
      for (std::size_t unit = 0; unit < grid_.stage_stride(); ++unit) {
        Pass pass = grid_.pass_at(unit, kind);
        pass.stage = rank;
        if (seen_[slot(kind, pass)] != 0) continue;
        problems_.push_back(
            {rank, -1,
             fmt::format("{} is missing: every rank holds a shard of the vocabulary", text(pass))});
      }
    }
  }

  std::size_t slot(PassKind kind, const Pass& pass) const {
    std::size_t row = 0;
    while (kShardKinds[row] != kind) ++row;
    return row * grid_.stage_stride() +
           grid_.index({.stage = 0, .microbatch = pass.microbatch, .slice = pass.slice});
  }
  template <typename Int>
  static std::size_t index(Int i) {
    return static_cast<std::size_t>(i);
  }

  const VocabPasses passes_;
  const PassGrid grid_;              // its stages are the ranks
  std::vector<CollectiveId> order_;  // of rank 0
  std::vector<std::int32_t> first_;  // their actions there
  std::size_t num_collectives_ = 0;  // of the rank being read
  std::vector<std::uint8_t> seen_;   // of the rank being read: per kind and unit
};

}  // namespace

bool check_vocabulary(const Program& program, std::vector<Problem>& problems) {
  return Vocabulary(program, problems).run();
}

}  // namespace sluice
