// offload_setup.h - what a run needs for offload beside its Program: rates and stores.
// Read next: plan.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/program/program.h"
#include "sluice/runtime/far_store.h"
#include "sluice/train/config.h"

namespace sluice {

/// Bytes per second that one rank copies while all do; 0: not measured.
struct CopyRates {
  double out = 0.0;
  double in = 0.0;
  double both = 0.0;  // out and in together, when a rank does both at once
};

/// What the run copies out: pipeline.offload, or what the schedule does by itself.
std::string offload_amount(const PipelineConfig& pipeline);

/// Measures the tier of the config with `num_ranks` ranks of this process at once, in about a tenth
/// of a second for memory and up to a second for a disk. Nothing to measure: zeros. Throws:
/// InvalidArgument when pipeline.offload_dir cannot be written or has no room.
CopyRates measure_copy_rates(const PipelineConfig& pipeline, int num_ranks);

/// One store per rank for the D passes of `program`; null where a rank has none. `stage_bytes`:
/// what one D of each stage moves. Room for all ranks is checked first. Throws: InvalidArgument
/// with what is needed, what is free and the setting to change.
std::vector<std::unique_ptr<FarStore>> make_far_stores(
    const PipelineConfig& pipeline, const Program& program,
    const std::vector<std::int64_t>& stage_bytes);

/// Ranks first_rank to first_rank + num_ranks - 1 of a run, pipeline after pipeline, are in this
/// process; num_processes such processes share the machine.
struct RanksHere {
  int first_rank = 0;
  int num_ranks = 1;
  int num_processes = 1;
};

/// The stores of the ranks here. Room is checked for all processes of the machine.
/// Throws: as make_far_stores().
std::vector<std::unique_ptr<FarStore>> make_stores_here(
    const PipelineConfig& pipeline, const Program& program,
    const std::vector<std::int64_t>& stage_bytes, const RanksHere& here);

}  // namespace sluice
