#include <gtest/gtest.h>

#include "sluice/train/suggest.h"

namespace sluice {
namespace {

TEST(Suggest, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("abc", "abxc"), 1);
  EXPECT_EQ(edit_distance("abc", "ac"), 1);
  EXPECT_EQ(edit_distance("abc", "axc"), 1);
  EXPECT_EQ(edit_distance("ranks", "rnaks"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggest, PutsTheNearestNameFirst) {
  const std::vector<std::string> names{"train.steps", "train.beta1", "train.beta2", "run.seed"};
  EXPECT_EQ(nearest_names("train.beta", names),
            (std::vector<std::string>{"train.beta1", "train.beta2"}));
  EXPECT_EQ(did_you_mean("train.beta", names), "; did you mean train.beta1 or train.beta2?");
}

TEST(Suggest, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("something else entirely", {"run.seed", "run.dir"}), "");
}

}  // namespace
}  // namespace sluice
