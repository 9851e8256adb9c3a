// exchange_cost.h - what exchanged attention adds to and takes from passes. Read next: simulate.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/plan_exchange.h"
#include "sluice/sim/cost_model.h"

namespace sluice {

/// The costs of forwards as plan_exchange() wants them.
/// REQUIRES: half_ticks[F] is not empty and no pass costs less than its movable halves.
ExchangeCosts exchange_costs(const CostModel& cost);

/// Ticks of one pass: what the compute lane works, and how long the pass takes with what its
/// exchange lane carries beside it (K/V, Q and results of all its entries, twice in a backward:
/// gradients come back as well).
struct PassTime {
  std::int64_t work = 0;
  std::int64_t length = 0;
};

/// Hands out the times of one rank's passes in the order of its list.
/// Ownership: keeps references to the program and the costs.
class PassTimes {
 public:
  PassTimes(const Program& program, const CostModel& cost, std::size_t rank);

  /// REQUIRES: called once for every pass of the rank, in order.
  PassTime next(const Pass& pass) {
    if (at_ != exchanges_.size() && exchanges_[at_].pass == pass) return times_[at_++];
    const std::int64_t ticks = cost_.duration(pass);
    return {ticks, ticks};
  }

 private:
  const CostModel& cost_;
  const std::vector<PassExchange>& exchanges_;
  std::vector<PassTime> times_;
  std::size_t at_ = 0;
};

}  // namespace sluice
