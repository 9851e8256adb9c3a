#include "sluice/program/exchange.h"

#include <algorithm>

namespace sluice {
namespace {

template <typename Visit>
void for_each_pass(const ExchangePlan& plan, const Visit& visit) {
  for (const std::vector<PassExchange>& passes : plan.ranks) {
    for (const PassExchange& pass : passes) visit(pass);
  }
}

}  // namespace

std::string_view to_string(ExchangeMode mode) {
  switch (mode) {
    case ExchangeMode::kPairwise:
      return "pairwise";
    case ExchangeMode::kBalanced:
      return "balanced";
    case ExchangeMode::kNone:
      break;
  }
  return "none";
}

std::int64_t PassExchange::num_halves(const std::vector<ExchangeEntry>& entries) {
  std::int64_t sum = 0;
  for (const ExchangeEntry& entry : entries) sum += entry.num_halves();
  return sum;
}

bool ExchangePlan::empty() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& passes) { return passes.empty(); });
}

double ExchangePlan::num_forward_kv_slices() const {
  std::int64_t num_halves = 0;
  for_each_pass(*this, [&](const PassExchange& pass) {
    if (pass.pass.kind == PassKind::kForward) num_halves += PassExchange::num_halves(pass.lend);
  });
  return static_cast<double>(num_halves) / 2.0;
}

std::int64_t ExchangePlan::num_forward_transfers() const {
  std::int64_t num_transfers = 0;
  for_each_pass(*this, [&](const PassExchange& pass) {
    if (pass.pass.kind == PassKind::kForward) {
      num_transfers += static_cast<std::int64_t>(pass.lend.size());
    }
  });
  return num_transfers;
}

std::int64_t ExchangePlan::most_served(int rank) const {
  std::int64_t most = 0;
  if (ranks.empty()) return most;
  for (const PassExchange& pass : ranks[static_cast<std::size_t>(rank)]) {
    most = std::max(most, PassExchange::num_halves(pass.serve));
  }
  return most;
}

std::int64_t ExchangePlan::largest_entry() const {
  std::int64_t largest = 0;
  for_each_pass(*this, [&](const PassExchange& pass) {
    for (const ExchangeEntry& entry : pass.lend) {
      largest = std::max<std::int64_t>(largest, entry.num_halves());
    }
  });
  return largest;
}

}  // namespace sluice
