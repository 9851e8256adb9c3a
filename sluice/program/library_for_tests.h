// library_for_tests.h - sizes and schedules that the tests of several folders sweep over.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice {

/// Calls `check` with every schedule of the library for 1 to 8 ranks, fewer, as many and more
/// microbatches than ranks, one and three slices, and eight of those that know slices. Sizes a
/// generator refuses are left out. `label` names the case for SCOPED_TRACE.
inline void for_each_schedule(
    const std::function<void(const std::string& label, const Schedule& schedule)>& check) {
  for (const ScheduleInfo& info : schedule_library()) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const int microbatches : {1, 3, 4, 10}) {
        for (const int slices : {1, 3, 8}) {
          if (slices == 8 && !info.slices_itself) continue;
          ScheduleRequest request;
          request.ranks = ranks;
          request.microbatches = microbatches;
          request.slices = slices;
          Schedule schedule;
          try {
            schedule = make_schedule(info.name, request);
          } catch (const InvalidArgument&) {
            continue;
          }
          check(fmt::format("{}_{}ranks_{}microbatches_{}slices", info.name, ranks, microbatches,
                            slices),
                schedule);
        }
      }
    }
  }
}

}  // namespace sluice
