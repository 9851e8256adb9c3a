#include "sluice/comm/torchrun.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using Variables = std::map<std::string, std::string>;

TorchrunPlace place_in(const Variables& variables) {
  return torchrun_place([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kVariables = {{"RANK", "0"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "2"},
                              {"MASTER_ADDR", "node7"},
                              {"MASTER_PORT", "29500"}};

TEST(Torchrun, FirstRankServesTheStoreUnlessTheLauncherDoes) {
  Variables variables = kVariables;
  EXPECT_TRUE(place_in(variables).serves_store);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_TRUE(place_in(variables).serves_store);
  variables["RANK"] = "1";
  EXPECT_FALSE(place_in(variables).serves_store);
  variables["RANK"] = "0";
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_FALSE(place_in(variables).serves_store);
}

TEST(Torchrun, KeysAreThoseOfOneAttempt) {
  Variables variables = kVariables;
  variables["TORCHELASTIC_RUN_ID"] = "night";
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  const std::string first = place_in(variables).prefix;
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_NE(place_in(variables).prefix, first);
  const TorchrunPlace place = place_in(variables);
  EXPECT_EQ(place.local_rank, 2);
  EXPECT_EQ(place.host, "node7");
  EXPECT_EQ(place.port, 29500);
}

TEST(Torchrun, NamesTheVariableThatIsMissingOrWrong) {
  for (const auto& [name, value] : kVariables) {
    for (const char* wrong : {"", "x", "-1", "99999999"}) {
      if (name == "MASTER_ADDR" && *wrong != '\0') continue;
      Variables variables = kVariables;
      variables[name] = wrong;
      try {
        place_in(variables);
        FAIL() << name << " = " << wrong;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace sluice
