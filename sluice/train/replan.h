// replan.h - offload planned again with what the first steps took. Read next: plan_offload.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/runtime/engine.h"
#include "sluice/runtime/far_store.h"
#include "sluice/train/plan.h"

namespace sluice {

/// One rank's measurements of the first steps with the program that stays: one to warm up, then two
/// of which the least counts. A value of its rank's thread.
class OffloadWatch {
 public:
  /// `asked`: whether there is offload to plan; else nothing is watched.
  explicit OffloadWatch(bool asked) : done_(!asked) {}

  bool done() const { return done_; }

  /// `engine` has run a step of `program`. REQUIRES: not done().
  void add(const Engine& engine, const Program& program);

  /// Ticks (ns) of every (kind, stage, slice) that ran on this rank, kind by kind, 0 of the others;
  /// then bytes and seconds of its copies out, and of those back.
  std::vector<double> figures() const;

 private:
  int num_steps_ = 0;
  bool done_ = false;
  std::vector<double> ticks_;
  CopyCounters before_, after_;
};

/// What all ranks measured, from the figures() of each: of replicas the slowest; rates are those of
/// the rank whose copies were slowest, `known` where nothing was copied.
struct MeasuredOffload {
  CostModel passes;
  CopyRates rates;
};
MeasuredOffload combine(const std::vector<std::vector<double>>& figures, const Program& program,
                        const CopyRates& known);

/// The plan of a run with its copies planned again, where they differ.
struct Replan {
  std::optional<RunPlan> plan;  // empty: the run goes on as it was
  std::string note;             // what was measured and decided, in one line
};

/// Plans the copies of `now` again with `measured`, where that is further than
/// pipeline.offload_replan from what they were planned with: in any pass or in the rates. The order
/// of the passes, the layers and an attention exchange stay. A pure function: every process of a
/// run gets the same.
Replan replan(const RunConfig& config, RunPlan now, const MeasuredOffload& measured);

/// How a run changes over to the second plan: one object for the ranks of a process, and all ranks
/// of the run go through decide() together.
class Replanner {
 public:
  /// Keeps references to config and plan.
  Replanner(const RunConfig& config, const RunPlan& plan, const RanksHere& here)
      : config_(config), plan_(plan), here_(here) {}

  /// Whether the run goes on with plan(), the same on all ranks. `exchanging`: the program that
  /// stays is that of RunPlan::exchanging. Where the far side has no room for both plans at once,
  /// the first one stays.
  bool decide(Transport& world, bool exchanging, const OffloadWatch& watch);

  /// After decide(): the second plan, where there is one; constant from then on.
  const std::optional<RunPlan>& plan() const { return replan_.plan; }
  const std::string& note() const { return replan_.note; }
  /// Gives the rank at this place in the process where it copies to; null: it copies nothing.
  std::unique_ptr<FarStore> take_store(std::size_t own) { return std::move(stores_[own]); }
  /// After the run: gives the plan away.
  RunPlan take_plan() { return std::move(*replan_.plan); }

 private:
  const RunConfig& config_;
  const RunPlan& plan_;
  const RanksHere here_;
  Replan replan_;
  std::vector<std::unique_ptr<FarStore>> stores_;
};

}  // namespace sluice
