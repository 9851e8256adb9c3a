#include "sluice/train/world_check.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/comm/agree.h"
#include "sluice/common/errors.h"
#include "sluice/train/hash64.h"

namespace sluice {
namespace {

/// "section.key = value" per line.
std::vector<std::string> settings_of(const std::string& toml) {
  std::vector<std::string> settings;
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) {
      section = line.substr(1, line.find(']') - 1);
    } else if (!line.empty()) {
      settings.push_back(section + "." + line);
    }
  }
  return settings;
}

[[noreturn]] void refuse(const std::string& first, const std::string& other, std::size_t rank) {
  const auto theirs = settings_of(other), ours = settings_of(first);
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] == theirs[i]) continue;
    throw InvalidArgument(
        fmt::format("rank {} was started with {}, rank 0 with {}: start all ranks with the same "
                    "config file and options",
                    rank, theirs[i], ours[i]));
  }
  throw InvalidArgument(fmt::format(
      "rank {} knows other settings than rank 0: start all ranks with the same program", rank));
}

}  // namespace

void check_world(Transport& world, const RunConfig& config, bool resume, const char* launcher) {
  const std::string mine =
      fmt::format("{}[command]\nresume = {}\n", to_toml(config), resume ? "true" : "false");
  const std::string hash = hash_text(hash64(std::string_view(mine)));
  const auto hashes = gather_texts(world, hash);
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    const auto texts = gather_texts(world, mine);
    refuse(texts[0], texts[rank], rank);
  }
  if (world.size() != config.num_ranks()) {
    throw InvalidArgument(fmt::format(
        "{} started {} processes, and pipeline.ranks x parallel.data = {} x {} needs {}: start {} "
        "processes, or change one of the two",
        launcher, world.size(), config.pipeline.ranks, config.parallel.data, config.num_ranks(),
        config.num_ranks()));
  }
}

}  // namespace sluice
