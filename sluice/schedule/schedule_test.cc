#include "sluice/schedule/schedule.h"

#include <gtest/gtest.h>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

TEST(Placement, LoopPutsStagesRoundAndRound) {
  const Placement placement = Placement::loop(3, 2);
  EXPECT_EQ(placement.num_ranks(), 3);
  EXPECT_EQ(placement.num_stages(), 6);
  EXPECT_EQ(placement.stages_of(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(placement.rank_of(5), 2);
  EXPECT_EQ(placement.chunk_of(2), 0);
  EXPECT_EQ(placement.chunk_of(4), 1);
}

TEST(Placement, VShapeGivesRankZeroBothEnds) {
  const Placement placement = Placement::v_shape(3);
  EXPECT_EQ(placement.stages_of(0), (std::vector<int>{0, 5}));
  EXPECT_EQ(placement.stages_of(2), (std::vector<int>{2, 3}));
  EXPECT_EQ(placement.chunk_of(3), 1);
}

TEST(Placement, RefusesRanksThatAreNotThere) {
  EXPECT_THROW(Placement({0, 2}, 2), InvalidArgument);
  EXPECT_THROW(Placement({0, -1}, 2), InvalidArgument);
}

TEST(ForwardOnly, KeepsTheForwardsInOrderAndRuns) {
  const Schedule training =
      make_schedule("interleaved", {.ranks = 3, .microbatches = 4, .chunks = 2, .slices = 2});
  const Schedule validation = forward_only(training);
  EXPECT_TRUE(validation.forward_only);
  EXPECT_EQ(validation.num_slices, 2);
  EXPECT_EQ(validation.placement, training.placement);
  EXPECT_EQ(validation.num_passes(), training.num_passes() / 2);
  for (std::size_t rank = 0; rank < training.ranks.size(); ++rank) {
    std::vector<Pass> forwards;
    for (const Pass& pass : training.ranks[rank]) {
      if (pass.kind == PassKind::kForward) forwards.push_back(pass);
    }
    EXPECT_EQ(validation.ranks[rank], forwards);
  }
  EXPECT_TRUE(validate(validation).empty());
}

}  // namespace
}  // namespace sluice
