// generators.h - every schedule generator, one per file, and what they share. Read next:
// library.cc. Callers outside this folder use make_schedule() of registry.h, which makes the common
// checks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/registry.h"

namespace sluice {

// Each takes a request with ranks, microbatches >= 1, chunks set (never 0) and slices left out:
// make_schedule() cuts the passes into slices afterwards. Throws: InvalidArgument when the schedule
// has no such size, with a value that works.

Schedule make_gpipe(const ScheduleRequest& request);
Schedule make_1f1b(const ScheduleRequest& request);
Schedule make_interleaved(const ScheduleRequest& request);
Schedule make_breadth_first(const ScheduleRequest& request);
Schedule make_zb_1p(const ScheduleRequest& request);
Schedule make_zb_2p(const ScheduleRequest& request);
Schedule make_zb_v(const ScheduleRequest& request);
Schedule make_1f1b_v(const ScheduleRequest& request);
Schedule make_v_half(const ScheduleRequest& request);
Schedule make_v_min(const ScheduleRequest& request);
Schedule make_dualpipe_v(const ScheduleRequest& request);
Schedule make_gis(const ScheduleRequest& request);
Schedule make_gis_h(const ScheduleRequest& request);
Schedule make_po(const ScheduleRequest& request);
Schedule make_po_h(const ScheduleRequest& request);
Schedule make_po_f(const ScheduleRequest& request);

// These know slices themselves: the request's slices are theirs to place.

Schedule make_seq1f1b(const ScheduleRequest& request);
Schedule make_slimpipe(const ScheduleRequest& request);
Schedule make_slice_v(const ScheduleRequest& request);

/// The entries of schedule_library(), in its order.
std::vector<ScheduleInfo> describe_library();

/// A schedule named `name` with `placement`, the request's microbatches and an empty list of passes
/// for each rank.
Schedule empty_schedule(std::string name, Placement placement, const ScheduleRequest& request);

/// Throws: InvalidArgument unless request.chunks is `chunks`, naming schedules that take more.
void require_chunks(std::string_view name, const ScheduleRequest& request, int chunks);

/// Throws: InvalidArgument when request.group is set: only interleaved and gis have groups.
void require_no_group(std::string_view name, const ScheduleRequest& request);

}  // namespace sluice
