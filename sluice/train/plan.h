// plan.h - from a RunConfig to what will run, with its predicted time and memory.
// Read next: trainer.h.
#pragma once

#include <optional>
#include <string>

#include "sluice/model/layout.h"
#include "sluice/program/program.h"
#include "sluice/schedule/schedule.h"
#include "sluice/sim/simulate.h"
#include "sluice/train/config.h"
#include "sluice/train/offload_setup.h"
#include "sluice/train/plan_offload.h"

namespace sluice {

/// A training step.
struct PlannedStep {
  Schedule schedule;
  Program program;
  OffloadDecision copies;
};

/// Everything that is decided before the first step. The Programs are verified.
struct RunPlan {
  Schedule schedule;
  Program program;         // a training step
  OffloadDecision copies;  // of it
  /// The same with an attention exchange, and copies for the times it leaves to the passes, where
  /// pipeline.exchange = "auto" leaves it to the first steps whether that is faster.
  std::optional<PlannedStep> exchanging;
  Program evaluation;  // the forwards of a validation step
  Layout layout;
  bool keep_probabilities = true;  // of a sharded output layer, from S until T
  CostModel cost;                  // what the prediction was made with
  MemoryModel memory;
  Simulation prediction;  // timeline, memory peaks
};

/// Bytes that one D of each stage moves.
std::vector<std::int64_t> movable_bytes(const MemoryModel& memory);

/// Plans the run: layers over stages, the schedule (planned with the stages' own costs), the
/// Program, the simulation. Costs are the passes' FLOPs at `flops_per_second` of one rank; copies
/// go at `rates`. Throws: InvalidArgument for settings that do not fit each other, or a link too
/// slow for any of the offload asked for; InternalError when a generated schedule fails its proof.
RunPlan make_plan(const RunConfig& config, double flops_per_second, const CopyRates& rates = {});

/// Makes `exchanging` the step of the plan and predicts it.
void adopt_exchange(RunPlan& plan);

/// Makes `copies`, of the same order of passes, those of the plan and predicts it with `cost`. An
/// attention exchange stays. Throws: InternalError when the Program fails its proof.
void adopt_copies(RunPlan& plan, PlannedCopies copies, CostModel cost);

/// The memory model of the plan's stages for one (microbatch, slice).
MemoryModel memory_model(const ModelConfig& model, const Layout& layout, const Placement& placement,
                         std::int64_t batch, std::int64_t tokens, int num_slices);

/// The schedule picture, the layers of every stage, the predicted step time, bubble and memory.
std::string describe(const RunPlan& plan, const RunConfig& config);

}  // namespace sluice
