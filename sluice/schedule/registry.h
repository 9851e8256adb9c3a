// registry.h - the library of schedules by name. Read next: program/program.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

/// Integer pass times that cost-aware generators (zb-1p, zb-2p, the V family's reordering) plan
/// with, in ticks of the caller's choice. Index: stage. Empty vectors mean F = I = W = 1.
struct PassTicks {
  std::vector<std::int64_t> forward;
  std::vector<std::int64_t> backward_input;
  std::vector<std::int64_t> backward_weight;
  std::int64_t message = 0;  // time of one message between ranks

  friend bool operator==(const PassTicks&, const PassTicks&) = default;
};

/// What a generator is asked for. 0 means the schedule's own default.
struct ScheduleRequest {
  int ranks = 1;
  int microbatches = 1;
  int chunks = 0;  // stages per rank
  int slices = 1;
  int group = 0;  // microbatch group of interleaved and gis
  PassTicks ticks = {};
  /// What zb-2p counts for a microbatch between its I and its W, in percent of what its forward
  /// saves. The Zero Bubble paper's models keep 37 to 43; 100 bounds the microbatches before W by
  /// 2p.
  int weight_residue_percent = 50;
  /// What po-h and po-f plan their copies with: time to copy out and back what a forward saves, in
  /// percent of the time of its F, I and W.
  int offload_ratio_percent = 100;
};

/// One entry of the library.
struct ScheduleInfo {
  std::string name;
  std::string summary;         // one sentence: what it is good for
  std::string source;          // paper or rule it comes from
  std::string bubble_formula;  // in the letters of docs/schedules.md
  std::string memory_formula;  // peak activations in units of one microbatch through the model
  std::string rules;           // rules on sizes
  int default_chunks = 1;
  std::string offload = "none";  // what moves unless asked otherwise: none, half, full
  bool slices_itself = false;    // false: make_schedule() cuts each pass into slices in place
  std::function<Schedule(const ScheduleRequest&)> generate;
};

/// All schedules, in the order `sluice schedule list` shows them.
const std::vector<ScheduleInfo>& schedule_library();

/// The entry called `name`. Throws: InvalidArgument listing the valid names.
const ScheduleInfo& find_schedule(std::string_view name);

/// Generates `name` for the request, after the common checks (ranks, microbatches, chunks, slices).
/// With slices > 1 a schedule that does not know slices has each pass cut in place: F slice
/// ascending, B, I and W slice descending.
/// Throws: InvalidArgument with the rule and a value that would work.
Schedule make_schedule(std::string_view name, const ScheduleRequest& request);

}  // namespace sluice
