#include <gtest/gtest.h>

#include <vector>

#include "sluice/train/program_trial.h"

namespace sluice {
namespace {

/// Runs the trial with the seconds that each step would take by program; returns who ran.
std::vector<std::size_t> run(ProgramTrial& trial, const std::vector<std::vector<double>>& seconds) {
  std::vector<std::size_t> ran;
  for (const std::vector<double>& step : seconds) {
    ran.push_back(trial.current());
    trial.add(step[trial.current()]);
  }
  return ran;
}

TEST(ProgramTrial, OneProgramNeedsNone) {
  ProgramTrial trial(1);
  EXPECT_TRUE(trial.decided());
  EXPECT_EQ(trial.current(), 0u);
}

TEST(ProgramTrial, TakesTurnsThenKeepsTheFastest) {
  ProgramTrial trial(2);
  const std::vector<double> step = {3.0, 2.0};
  EXPECT_EQ(run(trial, {step, step, step, step, step, step, step, step}),
            (std::vector<std::size_t>{0, 1, 0, 1, 0, 1, 1, 1}));
  EXPECT_TRUE(trial.decided());
  EXPECT_EQ(trial.seconds_of(0), 3.0);
  EXPECT_EQ(trial.seconds_of(1), 2.0);
}

TEST(ProgramTrial, TheFirstStepOfEachAndOneSlowStepDoNotCount) {
  ProgramTrial trial(2);
  run(trial, {{1.0, 0}, {0, 9.0}, {3.0, 0}, {0, 2.0}, {3.0, 0}, {0, 8.0}});
  EXPECT_EQ(trial.current(), 1u);
  EXPECT_EQ(trial.seconds_of(1), 2.0);
}

TEST(ProgramTrial, OfEqualOnesTheFirstStays) {
  ProgramTrial trial(2);
  run(trial, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
  EXPECT_FALSE(trial.decided());
  trial.add(1.0);
  EXPECT_TRUE(trial.decided());
  EXPECT_EQ(trial.current(), 0u);
}

}  // namespace
}  // namespace sluice
