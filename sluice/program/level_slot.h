// level_slot.h - who lends how much to whom in one slot. Used by plan_exchange().
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/plan_exchange.h"

namespace sluice {

/// What one busy rank does in a slot.
struct SlotLoad {
  std::int64_t own = 0;    // ticks that cannot move
  std::int64_t half = 0;   // ticks of each half slice that can
  std::int32_t slice = 0;  // of its pass: it has 2 * slice halves that can move

  std::int64_t total() const { return own + 2 * slice * half; }
  friend auto operator<=>(const SlotLoad&, const SlotLoad&) = default;
};

/// A range of half slices that one member of a slot lends to another; indices into the slot.
struct SlotTransfer {
  std::int32_t lender = 0;
  std::int32_t server = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;

  friend bool operator==(const SlotTransfer&, const SlotTransfer&) = default;
};

/// The published rule: mirror pairs by length of context, half the difference in whole slices.
std::vector<SlotTransfer> pair_slot(const std::vector<SlotLoad>& loads);

/// Levels the loads to within one half slice, or as far as `link` carries it within the slot's own
/// length; nothing where that does not shorten the slot. Members with stages of different sizes
/// count what the smallest moves for each half.
std::vector<SlotTransfer> level_slot(const std::vector<SlotLoad>& loads, const ExchangeLink& link);

}  // namespace sluice
