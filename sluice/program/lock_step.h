// lock_step.h - which passes of a Program can run at the same time. Read next: plan_exchange.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// Per rank and action the strict lock-step slot: a forward takes an even slot, a backward (B or I)
/// an odd one, each the earliest after everything that it needs, here or through a message, and
/// after the compute passes before it on its rank. All other actions take no slot; theirs is the
/// last one before them. So a slot has at most one forward or backward of each rank, and along any
/// chain of dependencies slots only grow: no two passes of a slot depend on each other.
/// -1: before any slot; kNeverRuns: the program has a circle, which verify() reports.
inline constexpr std::int32_t kNeverRuns = -2;
std::vector<std::vector<std::int32_t>> lock_step_slots(const Program& program);

}  // namespace sluice
