#include "sluice/runtime/exchanger.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>

#include "sluice/comm/local.h"
#include "sluice/common/errors.h"
#include "sluice/runtime/allocator.h"

namespace sluice {
namespace {

// Rank 0 lends the three oldest half slices of 0F1.3 to rank 1's 1F1.0.
ExchangePlan one_transfer() {
  const Pass lender{PassKind::kForward, 0, 1, 3}, server{PassKind::kForward, 1, 1, 0};
  ExchangePlan plan{.mode = ExchangeMode::kBalanced, .ranks = {}};
  plan.ranks.push_back({{lender, 7, {{1, server, 0, 3}}, {}}});
  plan.ranks.push_back({{server, 7, {}, {{0, lender, 0, 3}}}});
  return plan;
}

TEST(Exchanger, NamesBothRanksSlotLayerAndPassOfAMessageThatDoesNotCome) {
  const ExchangePlan plan = one_transfer();
  const auto transports =
      make_local_transports(2, {.timeout = std::chrono::milliseconds(20), .rendezvous = false});
  MemoryLedger ledger;
  Exchanger server(plan, {3, 3}, *transports[1], ledger);
  server.begin(plan.ranks[1][0]);
  std::string message;
  try {
    server.serve_forward(2, at::ones({1, 4, 2, 8}), at::ones({1, 2, 4, 8}));
  } catch (const CommError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("exchange slot 7: rank 0 lends attention of 0F1.3, layer 2, to rank 1"),
            std::string::npos)
      << message;
}

TEST(Exchanger, LeavesLayersOutThatOneOfTheStagesLacks) {
  const ExchangePlan plan = one_transfer();
  const auto transports = make_local_transports(2);
  MemoryLedger ledger;
  Exchanger lender(plan, {3, 2}, *transports[0], ledger);
  lender.begin(plan.ranks[0][0]);
  EXPECT_EQ(lender.num_lent(1), 3);
  EXPECT_EQ(lender.num_lent(2), 0);
  Exchanger server(plan, {3, 2}, *transports[1], ledger);
  server.begin(plan.ranks[1][0]);
  EXPECT_EQ(server.num_lent(0), 0);
}

}  // namespace
}  // namespace sluice
