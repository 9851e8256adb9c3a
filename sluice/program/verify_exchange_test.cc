#include "sluice/program/verify_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sluice/program/library_for_tests.h"
#include "sluice/program/lower.h"
#include "sluice/program/plan_exchange.h"
#include "sluice/program/verify.h"

namespace sluice {
namespace {

std::string all_texts(const Program& program) {
  std::string text;
  for (const Problem& problem : verify(program)) text += problem.text + "\n";
  return text;
}

void expect_problem(const Program& program, const std::string& words) {
  const std::string text = all_texts(program);
  EXPECT_NE(text.find(words), std::string::npos) << "wanted: " << words << "\nfound:\n" << text;
}

Program planned(const Schedule& schedule, ExchangeMode mode) {
  Program program = lower(schedule);
  program.exchange =
      plan_exchange(program, mode, causal_costs(program.num_stages(), program.num_slices));
  return program;
}

Program good() {
  return planned(make_schedule("slimpipe", {.ranks = 4, .microbatches = 2, .slices = 8}),
                 ExchangeMode::kBalanced);
}

// The first pass of `rank` that lends (or serves).
PassExchange& first(Program& program, std::size_t rank, bool lends) {
  auto& passes = program.exchange.ranks[rank];
  return *std::find_if(passes.begin(), passes.end(), [&](const PassExchange& exchange) {
    return lends ? !exchange.lend.empty() : !exchange.serve.empty();
  });
}

PassExchange& peer_of(Program& program, const ExchangeEntry& entry) {
  auto& passes = program.exchange.ranks[static_cast<std::size_t>(entry.peer)];
  return *std::find_if(passes.begin(), passes.end(), [&](const PassExchange& exchange) {
    return exchange.pass == entry.peer_pass;
  });
}

TEST(VerifyExchange, AcceptsThePlansOfEveryScheduleOfTheLibrary) {
  for_each_schedule([](const std::string& label, const Schedule& schedule) {
    if (schedule.num_slices == 1) return;
    SCOPED_TRACE(label);
    for (const ExchangeMode mode : {ExchangeMode::kPairwise, ExchangeMode::kBalanced}) {
      EXPECT_EQ(all_texts(planned(schedule, mode)), "");
      EXPECT_EQ(all_texts(planned(forward_only(schedule), mode)), "");
    }
  });
}

TEST(VerifyExchange, AcceptsTheProgramThatTheOtherCasesBreak) {
  const Program program = good();
  EXPECT_FALSE(program.exchange.empty());
  EXPECT_EQ(all_texts(program), "");
}

TEST(VerifyExchange, FindsAnEntryThatOneSideDoesNotCarry) {
  Program program = good();
  first(program, 0, /*lends=*/true).lend.pop_back();
  expect_problem(program, "do not both say so once");
  program = good();
  first(program, 3, /*lends=*/false).serve.clear();
  expect_problem(program, "do not both say so once");
}

TEST(VerifyExchange, FindsARangeThatTheSidesTellDifferently) {
  Program program = good();
  ++first(program, 3, /*lends=*/false).serve.front().end;
  expect_problem(program, "do not both say so once");
}

TEST(VerifyExchange, FindsAnEntryThatStandsTwice) {
  Program program = good();
  auto& serve = first(program, 3, /*lends=*/false).serve;
  serve.push_back(serve.front());
  expect_problem(program, "do not both say so once");
}

TEST(VerifyExchange, FindsHalfSlicesThatAreLentTwice) {
  Program program = good();
  PassExchange& lender = first(program, 0, /*lends=*/true);
  ExchangeEntry again = lender.lend.front();
  again.end = again.begin + 1;
  lender.lend.push_back(again);
  expect_problem(program, "lends half slice 0 twice");
}

TEST(VerifyExchange, FindsKeysThatAreNotOlderThanTheLendersOwn) {
  Program program = good();
  PassExchange& lender = first(program, 0, /*lends=*/true);
  ExchangeEntry& entry = lender.lend.back();
  PassExchange& server = peer_of(program, entry);
  for (ExchangeEntry& answer : server.serve) {
    if (answer.peer_pass == lender.pass) answer.end = 2 * lender.pass.slice + 1;
  }
  entry.end = 2 * lender.pass.slice + 1;  // half of the slice itself, where the mask is
  expect_problem(program, "only older slices can be lent");
  program = good();
  first(program, 0, /*lends=*/true).lend.front().begin = -1;
  expect_problem(program, "only older slices can be lent");
}

TEST(VerifyExchange, FindsAPeerThatIsNoOtherRank) {
  for (const int peer : {-1, 0, 4}) {
    Program program = good();
    first(program, 0, /*lends=*/true).lend.front().peer = peer;
    expect_problem(program, "which is no other rank");
  }
}

TEST(VerifyExchange, FindsAPeersPassThatExchangesNothing) {
  Program program = good();
  first(program, 0, /*lends=*/true).lend.front().peer_pass.microbatch = 77;
  expect_problem(program, "which exchanges nothing");
}

TEST(VerifyExchange, FindsPassesThatAreNotRunInTheListedOrder) {
  Program program = good();
  std::swap(program.exchange.ranks[1][0], program.exchange.ranks[1][1]);
  expect_problem(program, "does not run it");
  program = good();
  program.exchange.ranks[1].push_back(program.exchange.ranks[1].back());
  expect_problem(program, "does not run it");
}

TEST(VerifyExchange, FindsTheTwoSidesInDifferentSlots) {
  Program program = good();
  first(program, 0, /*lends=*/true).slot += 1000;
  expect_problem(program, "of slot 10");
}

TEST(VerifyExchange, FindsListsForAnotherNumberOfRanks) {
  Program program = good();
  program.exchange.ranks.pop_back();
  expect_problem(program, "3 exchange lists for 4 ranks");
}

// Links a pass of one rank with a later one of another, in both lists.
void connect(Program& program, std::size_t lender_rank, const Pass& lender, std::size_t server_rank,
             const Pass& server, std::int32_t slot) {
  program.exchange.ranks.resize(program.ranks.size());
  program.exchange.ranks[lender_rank].push_back(
      {lender, slot, {{static_cast<std::int32_t>(server_rank), server, 0, 1}}, {}});
  program.exchange.ranks[server_rank].push_back(
      {server, slot, {}, {{static_cast<std::int32_t>(lender_rank), lender, 0, 1}}});
}

TEST(VerifyExchange, FindsAPassThatNeedsTheOneItExchangesWith) {
  Program program = lower(make_schedule("slimpipe", {.ranks = 2, .microbatches = 1, .slices = 4}));
  const Pass lender{PassKind::kForward, 1, 0, 2};
  // 0F0.2 makes the very input of 1F0.2.
  connect(program, 1, lender, 0, {PassKind::kForward, 0, 0, 2}, 4);
  expect_problem(program, "slot 4 never starts: 0F0.2 of rank 0 waits for rank 1");
}

TEST(VerifyExchange, FindsACircleThroughOtherRanksAndMessages) {
  // 0F0.1 leads to 2F0.1 through rank 1; 2F0.1 comes after 2F0.0.
  Program program = lower(make_schedule("slimpipe", {.ranks = 3, .microbatches = 1, .slices = 4}));
  connect(program, 2, {PassKind::kForward, 2, 0, 1}, 0, {PassKind::kForward, 0, 0, 1}, 8);
  expect_problem(program, "a pass of a slot depends on another one of it");
  // The same two ranks with passes that can run together are fine.
  program.exchange.ranks.clear();
  connect(program, 2, {PassKind::kForward, 2, 0, 1}, 0, {PassKind::kForward, 0, 0, 3}, 8);
  EXPECT_EQ(all_texts(program), "");
}

TEST(VerifyExchange, FindsACircleThroughTwoSlots) {
  // Each slot by itself could start, but rank 0 comes to slot 4 first and rank 1 to slot 6.
  Program program = lower(make_schedule("slimpipe", {.ranks = 2, .microbatches = 2, .slices = 4}));
  connect(program, 0, {PassKind::kForward, 0, 0, 3}, 1, {PassKind::kForward, 1, 0, 1}, 4);
  connect(program, 0, {PassKind::kForward, 0, 1, 1}, 1, {PassKind::kForward, 1, 0, 2}, 6);
  EXPECT_EQ(all_texts(program), "");
  program.exchange.ranks.clear();
  connect(program, 0, {PassKind::kForward, 0, 0, 3}, 1, {PassKind::kForward, 1, 0, 2}, 4);
  connect(program, 0, {PassKind::kForward, 0, 1, 1}, 1, {PassKind::kForward, 1, 0, 1}, 6);
  std::swap(program.exchange.ranks[1][0], program.exchange.ranks[1][1]);
  expect_problem(program, "slot 4 never starts: 0F0.3 of rank 0 waits for rank 1");
  expect_problem(program, "slot 6 never starts: 1F0.1 of rank 1 waits for rank 0");
}

TEST(VerifyExchange, FindsTwoPassesOfOneRankInOneSlot) {
  Program program = good();
  auto& passes = program.exchange.ranks[0];
  const std::int32_t slot = passes.front().slot;
  for (auto& list : program.exchange.ranks) {
    for (PassExchange& exchange : list) {
      if (exchange.slot <= slot + 2) exchange.slot = slot;
    }
  }
  expect_problem(program, "never starts");
}

}  // namespace
}  // namespace sluice
