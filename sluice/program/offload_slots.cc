#include "sluice/program/offload_slots.h"

#include <algorithm>
#include <map>

#include "sluice/common/errors.h"
#include "sluice/program/pass_grid.h"

namespace sluice {

OffloadSlots plan_offload_slots(const Program& program, int rank,
                                const std::vector<std::int64_t>& stage_bytes,
                                std::int64_t alignment) {
  SLUICE_CHECK(static_cast<int>(stage_bytes.size()) == program.num_stages(),
               "bytes of {} stages for {}", stage_bytes.size(), program.num_stages());
  const PassGrid grid{program.num_stages(), program.num_microbatches, program.num_slices};
  const RankProgram& list = program.ranks[static_cast<std::size_t>(rank)];
  OffloadSlots slots;
  slots.offset.assign(grid.size(), -1);
  slots.size.assign(grid.size(), 0);
  std::map<std::int64_t, std::int64_t> taken;  // offset to end
  for (std::size_t k = 0; k < list.actions.size(); ++k) {
    const Action& action = list.actions[k];
    if (action.kind == ActionKind::kPass && action.pass.kind == PassKind::kOffload) {
      const std::size_t at = grid.index(action.pass);
      const std::int64_t bytes = stage_bytes[static_cast<std::size_t>(action.pass.stage)];
      const std::int64_t length =
          std::max<std::int64_t>(1, (bytes + alignment - 1) / alignment) * alignment;
      std::int64_t offset = 0;
      for (const auto& [begin, end] : taken) {
        if (begin - offset >= length) break;
        offset = end;
      }
      taken.emplace(offset, offset + length);
      slots.offset[at] = offset;
      slots.size[at] = bytes;
      slots.capacity = std::max(slots.capacity, offset + length);
      continue;
    }
    if (action.lane != Lane::kCompute) continue;
    for (const std::int32_t d : list.dependencies_of(k)) {
      const Action& needed = list.actions[static_cast<std::size_t>(d)];
      if (needed.kind == ActionKind::kPass && needed.pass.kind == PassKind::kReload) {
        taken.erase(slots.offset[grid.index(needed.pass)]);
      }
    }
  }
  return slots;
}

}  // namespace sluice
