#include "sluice/train/channels.h"

#include <gtest/gtest.h>

#include <set>

#include "sluice/program/lower.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

std::set<Channel> channels_of(const ScheduleRequest& params, const std::string& name, bool tied) {
  const Program program = lower(make_schedule(name, params));
  const auto channels = pipeline_channels({&program, &program}, tied);
  return {channels.begin(), channels.end()};
}

TEST(Channels, AreThoseBetweenNeighboursAlone) {
  std::set<Channel> wanted;
  for (int rank = 0; rank < 3; ++rank) {
    wanted.insert({rank, rank + 1, Direction::kForward});
    wanted.insert({rank + 1, rank, Direction::kBackward});
  }
  EXPECT_EQ(channels_of({.ranks = 4, .microbatches = 8}, "1f1b", false), wanted);
  // A V of two chunks goes down and up again.
  std::set<Channel> both_ways = wanted;
  for (const Channel& one : wanted) both_ways.insert({one.destination, one.source, one.direction});
  EXPECT_EQ(channels_of({.ranks = 4, .microbatches = 8}, "zb-v", false), both_ways);
}

TEST(Channels, TiedEndsTalkToEachOther) {
  const ScheduleRequest params{.ranks = 4, .microbatches = 8};
  auto wanted = channels_of(params, "1f1b", false);
  wanted.insert({0, 3, Direction::kForward});
  wanted.insert({3, 0, Direction::kBackward});
  EXPECT_EQ(channels_of(params, "1f1b", true), wanted);
  // Both ends of a V are on one rank.
  EXPECT_EQ(channels_of(params, "zb-v", true), channels_of(params, "zb-v", false));
}

TEST(Channels, ReplicasTalkEachToEach) {
  EXPECT_TRUE(replica_channels(1).empty());
  EXPECT_EQ(replica_channels(3).size(), 6U);
}

}  // namespace
}  // namespace sluice
