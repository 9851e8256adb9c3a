#include "sluice/comm/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

std::optional<Launch> launch_in(const std::map<std::string, std::string>& variables) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, IsNothingForAProcessStartedByItself) {
  EXPECT_FALSE(launch_in({}));
  EXPECT_FALSE(launch_in({{"RANK", "1"}, {"WORLD_SIZE", "2"}}));
  EXPECT_FALSE(launch_in({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
  // The script of a Slurm job that asked for four tasks.
  EXPECT_FALSE(launch_in({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}));
}

TEST(Launch, ReadsTheVariablesOfEveryLauncher) {
  for (const auto& [name, variables] :
       std::vector<std::pair<std::string, std::map<std::string, std::string>>>{
           {"mpirun", {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}}},
           {"mpirun", {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}},
           {"srun", {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}}},
           {"torchrun", {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "a"}}}}) {
    const auto launch = launch_in(variables);
    ASSERT_TRUE(launch) << name;
    EXPECT_EQ(launch->name, name);
    EXPECT_EQ(launch->rank, 3);
    EXPECT_EQ(launch->size, 4);
    EXPECT_EQ(launch->kind == Launch::Kind::kTorchrun, name == "torchrun");
  }
}

TEST(Launch, TorchrunCountsWhateverStartedIt) {
  const auto launch = launch_in({{"SLURM_PROCID", "1"},
                                 {"SLURM_STEP_NUM_TASKS", "2"},
                                 {"RANK", "9"},
                                 {"WORLD_SIZE", "16"},
                                 {"TORCHELASTIC_RUN_ID", "a"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->kind, Launch::Kind::kTorchrun);
  EXPECT_EQ(launch->size, 16);
}

TEST(Launch, VariablesOfTorchrunSetByHandCountUnlessAnMpiLauncherIsThere) {
  std::map<std::string, std::string> variables = {
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}};
  ASSERT_TRUE(launch_in(variables));
  EXPECT_EQ(launch_in(variables)->kind, Launch::Kind::kTorchrun);
  variables["OMPI_COMM_WORLD_RANK"] = "1";
  variables["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_EQ(launch_in(variables)->kind, Launch::Kind::kMpi);
}

TEST(Launch, MpirunInsideAJobOfSlurmCounts) {
  const auto launch = launch_in({{"SLURM_PROCID", "0"},
                                 {"SLURM_STEP_NUM_TASKS", "2"},
                                 {"OMPI_COMM_WORLD_RANK", "5"},
                                 {"OMPI_COMM_WORLD_SIZE", "8"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->size, 8);
}

}  // namespace
}  // namespace sluice
