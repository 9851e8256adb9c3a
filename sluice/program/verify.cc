#include "sluice/program/verify.h"

#include <fmt/format.h>

#include "sluice/program/verify_exchange.h"
#include "sluice/program/verify_impl.h"

namespace sluice {
namespace {

// Whether everything that follows may index freely with what the rank's arrays say.
bool check_shape(const RankProgram& program, int rank, std::vector<Problem>& problems) {
  const std::size_t num_actions = program.actions.size();
  const auto& begin = program.dependency_begin;
  if (begin.size() != num_actions + 1 || begin.front() != 0 ||
      begin.back() != static_cast<std::int32_t>(program.dependencies.size())) {
    problems.push_back({rank, -1,
                        fmt::format("the dependency ranges of rank {} do not cover its {} actions",
                                    rank, num_actions)});
    return false;
  }
  bool good = true;
  for (std::size_t k = 0; k < num_actions; ++k) {
    if (begin[k] > begin[k + 1] || begin[k + 1] > begin.back()) {
      problems.push_back({rank, static_cast<int>(k),
                          fmt::format("the dependency range of action {} is reversed", k)});
      return false;
    }
    for (const std::int32_t dependency : program.dependencies_of(k)) {
      if (dependency >= 0 && static_cast<std::size_t>(dependency) < k) continue;
      problems.push_back(
          {rank, static_cast<int>(k),
           fmt::format("{} depends on action {}, which is not an earlier action of its rank",
                       to_string(program.actions[k]), dependency)});
      good = false;
    }
  }
  return good;
}

}  // namespace

std::vector<Problem> verify(const Program& program) {
  std::vector<Problem> problems;
  if (static_cast<int>(program.ranks.size()) != program.num_ranks()) {
    problems.push_back({-1, -1,
                        fmt::format("the program has {} action lists for {} ranks",
                                    program.ranks.size(), program.num_ranks())});
    return problems;
  }
  if (program.num_microbatches < 1 || program.num_slices < 1) {
    problems.push_back({-1, -1,
                        fmt::format("the program has {} microbatches of {} slices; both must be at "
                                    "least 1",
                                    program.num_microbatches, program.num_slices)});
    return problems;
  }
  bool good = true;
  for (int rank = 0; rank < program.num_ranks(); ++rank) {
    good &= check_shape(program.ranks[static_cast<std::size_t>(rank)], rank, problems);
  }
  if (!good) return problems;
  const Matched matched = check_contents(program, problems);
  if (!check_vocabulary(program, problems)) return problems;
  check_progress(program, matched, problems);
  check_exchange(program, problems);
  if (problems.empty()) check_exchange_progress(program, problems);
  return problems;
}

}  // namespace sluice
