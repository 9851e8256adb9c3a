#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "sluice/train/batches.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

/// The stream 0, 1, 2, ...
TokenSource counting(std::int64_t num_tokens) {
  const auto tokens = std::make_shared<std::vector<std::int64_t>>();
  for (std::int64_t i = 0; i < num_tokens; ++i) tokens->push_back(i);
  const auto* data = reinterpret_cast<const std::byte*>(tokens->data());
  return TokenSource({{.owner = tokens,
                       .data = data,
                       .type = TokenType::kI64,
                       .count = num_tokens,
                       .path = "counting"}},
                     num_tokens);
}

TEST(Permutation, VisitsEveryElementOnce) {
  for (std::int64_t size = 1; size < 300; ++size) {
    const Permutation order(size, static_cast<std::uint64_t>(size));
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t k = order(i);
      ASSERT_GE(k, 0);
      ASSERT_LT(k, size);
      seen.insert(k);
    }
    ASSERT_EQ(static_cast<std::int64_t>(seen.size()), size);
  }
}

TEST(Permutation, WorksForAnySize) {
  for (const std::int64_t size : {std::int64_t{1} << 40, (std::int64_t{1} << 40) + 1,
                                  std::numeric_limits<std::int64_t>::max()}) {
    const Permutation order(size, 5);
    for (const std::int64_t i : {std::int64_t{0}, size / 2, size - 1}) {
      EXPECT_GE(order(i), 0);
      EXPECT_LT(order(i), size);
    }
  }
}

TEST(Permutation, DependsOnTheKeyAndLooksRandom) {
  constexpr std::int64_t kSize = 1000;
  const Permutation first(kSize, 1), second(kSize, 2);
  int num_equal = 0, num_rising = 0;
  double distance = 0.0;
  for (std::int64_t i = 0; i < kSize; ++i) {
    num_equal += first(i) == second(i);
    distance += std::abs(static_cast<double>(first(i) - i)) / kSize;
    if (i > 0) num_rising += first(i) > first(i - 1);
  }
  // Of a random order: 1 agreement, a third of the size as mean distance, half of the steps rising.
  EXPECT_LT(num_equal, 8);
  EXPECT_NEAR(distance / kSize, 1.0 / 3.0, 0.04);
  EXPECT_NEAR(num_rising, 500, 60);
}

TEST(BatchPlan, MakesTargetsOfTheNextTokens) {
  const BatchPlan plan(counting(101), 10, 1, BatchPlan::Order::kShuffled);
  EXPECT_EQ(plan.num_sequences(), 10);
  std::vector<std::int64_t> tokens(40), targets(40);
  EXPECT_EQ(plan.read(3, tokens, targets), 40);
  for (std::size_t b = 0; b < 4; ++b) {
    const std::int64_t begin = plan.sequence_of(3 + static_cast<std::int64_t>(b)) * 10;
    for (std::size_t t = 0; t < 10; ++t) {
      EXPECT_EQ(tokens[10 * b + t], begin + static_cast<std::int64_t>(t));
      EXPECT_EQ(targets[10 * b + t], begin + static_cast<std::int64_t>(t) + 1);
    }
  }
}

TEST(BatchPlan, ReadsEveryTargetOncePerEpoch) {
  const BatchPlan plan(counting(101), 10, 4, BatchPlan::Order::kShuffled);
  std::vector<std::int64_t> tokens(100), targets(100), order;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    plan.read(epoch * 10, tokens, targets);
    EXPECT_NE(targets, order);  // shuffled anew
    order = targets;
    std::sort(targets.begin(), targets.end());
    for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(targets[i], static_cast<std::int64_t>(i) + 1);
  }
}

TEST(BatchPlan, GivesASampleTheSameTokensHoweverItIsRead) {
  const BatchPlan plan(counting(1000), 7, 9, BatchPlan::Order::kShuffled);
  std::vector<std::int64_t> all(24 * 7), all_targets(24 * 7);
  plan.read(100, all, all_targets);
  for (const std::int64_t microbatch_size : {1, 2, 3, 8}) {
    std::vector<std::int64_t> joined;
    const auto size = static_cast<std::size_t>(microbatch_size * 7);
    for (std::int64_t first = 0; first < 24; first += microbatch_size) {
      std::vector<std::int64_t> tokens(size), targets(size);
      plan.read(100 + first, tokens, targets);
      joined.insert(joined.end(), tokens.begin(), tokens.end());
    }
    EXPECT_EQ(joined, all) << microbatch_size;
  }
  const BatchPlan again(counting(1000), 7, 9, BatchPlan::Order::kShuffled);
  const BatchPlan other(counting(1000), 7, 10, BatchPlan::Order::kShuffled);
  std::vector<std::int64_t> tokens(24 * 7), targets(24 * 7);
  again.read(100, tokens, targets);
  EXPECT_EQ(tokens, all);
  other.read(100, tokens, targets);
  EXPECT_NE(tokens, all);
}

TEST(BatchPlan, InOrderEndsWithSamplesWithoutTargets) {
  const BatchPlan plan(counting(25), 10, 1, BatchPlan::Order::kInOrder);
  std::vector<std::int64_t> tokens(40), targets(40);
  EXPECT_EQ(plan.read(0, tokens, targets), 20);
  EXPECT_EQ(tokens[10], 10);
  EXPECT_EQ(targets[19], 20);
  EXPECT_EQ(std::count(targets.begin() + 20, targets.end(), kIgnoreTarget), 20);
  EXPECT_EQ(std::count(tokens.begin() + 20, tokens.end(), 0), 20);
}

TEST(BatchPlan, RefusesAStreamShorterThanASequence) {
  EXPECT_NO_THROW(BatchPlan(counting(11), 10, 1, BatchPlan::Order::kShuffled));
  EXPECT_CONTAINS(message_of<InvalidArgument>(
                      [] { BatchPlan(counting(10), 10, 1, BatchPlan::Order::kShuffled); }),
                  "10 tokens are too few");
  EXPECT_THROW(BatchPlan(counting(0), 10, 1, BatchPlan::Order::kShuffled), InvalidArgument);
}

}  // namespace
}  // namespace sluice
