// verify_impl.h - the two halves of verify(): what the lists say, and whether they ever end.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// What every part of verify() has: the program it reads and the list of problems it adds to.
/// Ownership: keeps references to both.
class ProgramCheck {
 protected:
  ProgramCheck(const Program& program, std::vector<Problem>& problems)
      : program_(program), problems_(problems) {}

  static std::size_t position(std::int32_t index) { return static_cast<std::size_t>(index); }
  const std::vector<Action>& actions(int rank) const {
    return program_.ranks[position(rank)].actions;
  }
  std::string text(const Pass& pass) const { return to_string(pass, program_.num_slices > 1); }
  std::string text(const Action& action) const {
    return to_string(action, program_.num_slices > 1);
  }
  /// A problem of action `k` of a rank.
  template <typename... Args>
  void add(int rank, std::size_t k, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(
        {rank, static_cast<int>(k), fmt::format(format, std::forward<Args>(args)...)});
  }

  const Program& program_;
  std::vector<Problem>& problems_;
};

/// Whether the message at an action has an answer: the two ends name each other and one pass.
/// matched[rank][action], 0 or 1; 1 for actions that are no messages.
using Matched = std::vector<std::vector<std::uint8_t>>;

/// Points 2, 3 and 4 of verify(): reads every action once and each (stage, microbatch, slice) once.
/// REQUIRES: the dependency arrays of every rank are well formed.
Matched check_contents(const Program& program, std::vector<Problem>& problems);

/// Point 5 of verify(). False when the walk of point 1 would mean nothing.
/// REQUIRES: as above.
bool check_vocabulary(const Program& program, std::vector<Problem>& problems);

/// Point 1 of verify(): walks all ranks until nothing moves, with sends that complete only together
/// with their receives, and collectives that complete once all ranks have posted them.
/// Messages without an answer never complete.
/// REQUIRES: as above, and `matched` of the same program.
void check_progress(const Program& program, const Matched& matched, std::vector<Problem>& problems);

}  // namespace sluice
