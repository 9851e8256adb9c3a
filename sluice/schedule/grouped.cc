#include "sluice/schedule/grouped.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice {
namespace {

struct Slot {
  std::int32_t microbatch = -1;  // -1: nothing runs here
  std::int32_t chunk = 0;
};

std::vector<Slot> group_table(int num_microbatches, int num_chunks, const GroupedOrder& order) {
  std::vector<Slot> table;
  for (int first = 0; first < num_microbatches; first += order.group) {
    const int count = std::min(order.group, num_microbatches - first);
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      for (int j = 0; j < order.slots; ++j) table.push_back({j < count ? first + j : -1, chunk});
    }
  }
  return table;
}

}  // namespace

void fill_grouped(Schedule& schedule, const GroupedOrder& order) {
  const int num_ranks = schedule.num_ranks();
  const int num_chunks = schedule.num_stages() / num_ranks;
  const std::vector<Slot> table = group_table(schedule.num_microbatches, num_chunks, order);
  const std::size_t passes_per_slot = order.split ? 3 : 2;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<Pass>& passes = schedule.ranks[r];
    passes.reserve(passes_per_slot * static_cast<std::size_t>(num_chunks) *
                   static_cast<std::size_t>(schedule.num_microbatches));
    const auto add = [&](PassKind kind, int chunk, int microbatch) {
      passes.push_back({.kind = kind, .stage = chunk * num_ranks + rank, .microbatch = microbatch});
    };
    std::size_t next_forward = 0;
    for (std::size_t next_backward = 0; next_backward < table.size(); ++next_backward) {
      const std::size_t last =
          std::min(table.size(), next_backward + static_cast<std::size_t>(order.lead[r]));
      for (; next_forward < last; ++next_forward) {
        const Slot& slot = table[next_forward];
        if (slot.microbatch >= 0) add(PassKind::kForward, slot.chunk, slot.microbatch);
      }
      const Slot& slot = table[next_backward];
      if (slot.microbatch < 0) continue;
      const int mirrored = num_chunks - 1 - slot.chunk;
      if (order.split) {
        add(PassKind::kBackwardInput, mirrored, slot.microbatch);
        add(PassKind::kBackwardWeight, mirrored, slot.microbatch);
      } else {
        add(PassKind::kBackward, mirrored, slot.microbatch);
      }
    }
  }
}

}  // namespace sluice
