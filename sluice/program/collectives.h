// collectives.h - which collectives the vocabulary passes need, and the one order in which all
// ranks issue them. Used by lower() and verify(). Read next: collectives.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// One collective of a step.
struct CollectiveId {
  Collective kind = Collective::kNone;
  std::int32_t microbatch = 0;
  std::int32_t slice = 0;

  friend auto operator<=>(const CollectiveId&, const CollectiveId&) = default;
};

/// Which vocabulary layers are sharded, and so which passes take part.
struct VocabPasses {
  int num_stages = 1;
  bool has_embedding = false;  // there are E (and G)
  bool has_output = false;     // there are S (and T)
  bool forward_only = false;
  VocabForm form = VocabForm::kParallel2;

  bool any() const { return has_embedding || has_output; }
  bool operator()(Collective kind) const;

  /// The collectives that carry what `pass` makes, kNone where there is no second one.
  std::array<Collective, 2> made_by(const Pass& pass) const;
  /// The collectives whose result `pass` needs.
  std::array<Collective, 2> needed_by(const Pass& pass) const;
};

VocabPasses find_vocab_passes(const Schedule& schedule);
VocabPasses find_vocab_passes(const Program& program);

/// All collectives of the step in the order in which they would become ready if forwards took 2,
/// backwards 4 (or 2 and 2) and vocabulary passes 1. Since that is an order in which the schedule
/// runs, every rank can issue them so, each after the pass of its own that it carries and before
/// the first pass that needs its result.
/// REQUIRES: validate(schedule) is empty.
std::vector<CollectiveId> order_collectives(const Schedule& schedule, const VocabPasses& passes);

/// Puts the collectives into one rank's list of actions.
class CollectivePlacer {
 public:
  /// Keeps references to all arguments.
  CollectivePlacer(const Schedule& schedule, const VocabPasses& passes,
                   const std::vector<CollectiveId>& order, int rank);

  /// Appends to `out` what `pass` needs and all that comes before that in the order; returns the
  /// positions of what it needs, kNoAction where there is none. Called before the pass's own
  /// dependencies are added.
  std::array<std::int32_t, 2> before(RankProgram& out, const Pass& pass);

  /// Notes that `pass` is the action at `position`, and appends the collectives that carry what it
  /// makes unless earlier ones in the order wait for a later pass of this rank.
  void after(RankProgram& out, const Pass& pass, std::int32_t position);

  /// Appends the rest.
  void finish(RankProgram& out);

 private:
  std::size_t unit(Collective kind, int microbatch, int slice) const;
  bool has_producer(Collective kind) const;
  void post_through(RankProgram& out, std::size_t last);

  const Schedule& schedule_;
  const VocabPasses& passes_;
  const std::vector<CollectiveId>& order_;
  int rank_;
  std::vector<std::int32_t> place_in_order_;  // per collective
  std::vector<std::int32_t> producer_;        // per collective: the action that makes it
  std::vector<std::int32_t> posted_;          // per collective: its own action
  std::vector<PassKind> producer_kind_;       // B or I of the first stage
  std::size_t next_ = 0;                      // in the order
};

}  // namespace sluice
