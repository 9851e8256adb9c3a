#include "sluice/sim/exchange_cost.h"

#include <algorithm>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

const std::vector<PassExchange> kNothing;

// Half a slice of the lender's pass, computed by layers that both stages have.
std::int64_t ticks_per_half(const CostModel& cost, const Pass& lender, const Pass& server) {
  const Pass in_place{server.kind, server.stage, lender.microbatch, lender.slice};
  return std::min(cost.half_duration(lender), cost.half_duration(in_place));
}

PassTime time_of(const CostModel& cost, const PassExchange& exchange) {
  const Pass& pass = exchange.pass;
  std::int64_t work = cost.duration(pass);
  std::int64_t carried = 0;
  const auto carry = [&](const ExchangeEntry& entry) {
    carried += entry.num_halves() * cost.link.per_half + cost.link.per_transfer;
  };
  for (const ExchangeEntry& entry : exchange.lend) {
    work -= entry.num_halves() * ticks_per_half(cost, pass, entry.peer_pass);
    carry(entry);
  }
  for (const ExchangeEntry& entry : exchange.serve) {
    work += entry.num_halves() * ticks_per_half(cost, entry.peer_pass, pass);
    carry(entry);
  }
  SLUICE_CHECK(work >= 0, "{} lends more than it has", to_string(pass, true));
  if (pass.kind != PassKind::kForward) carried *= 2;
  return {work, std::max(work, carried)};
}

}  // namespace

ExchangeCosts exchange_costs(const CostModel& cost) {
  ExchangeCosts costs{cost.num_slices, {}, {}};
  for (int stage = 0; stage < cost.num_stages; ++stage) {
    for (int slice = 0; slice < cost.num_slices; ++slice) {
      const Pass pass{.kind = PassKind::kForward, .stage = stage, .slice = slice};
      const std::int64_t half = cost.half_duration(pass);
      costs.half.push_back(half);
      costs.own.push_back(cost.duration(pass) - 2 * slice * half);
      SLUICE_CHECK(costs.own.back() >= 0, "{} costs less than its attention",
                   to_string(pass, true));
    }
  }
  return costs;
}

PassTimes::PassTimes(const Program& program, const CostModel& cost, std::size_t rank)
    : cost_(cost),
      exchanges_(program.exchange.ranks.empty() ? kNothing : program.exchange.ranks[rank]) {
  times_.reserve(exchanges_.size());
  for (const PassExchange& exchange : exchanges_) times_.push_back(time_of(cost, exchange));
}

}  // namespace sluice
