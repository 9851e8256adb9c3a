#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "sluice/schedule/schedule.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

// A grid wider than this is cut to the part around the first cell that is wrong.
constexpr std::size_t kMaxColumns = 24;
constexpr std::size_t kColumnsBefore = 6;

struct Grid {
  std::vector<std::size_t> stop;          // per rank: the first cell that never runs
  std::vector<std::vector<int>> suspect;  // per rank: positions a problem names, ascending
};

Grid make_grid(const Schedule& schedule, const std::vector<Problem>& problems) {
  Grid grid;
  grid.suspect.resize(schedule.ranks.size());
  for (const std::vector<Pass>& passes : schedule.ranks) grid.stop.push_back(passes.size());
  const bool can_walk = static_cast<int>(schedule.ranks.size()) == schedule.num_ranks() &&
                        schedule.num_microbatches > 0 && schedule.num_slices > 0 &&
                        UnitIndex(schedule).fits_in_memory(schedule.num_passes());
  if (can_walk) {
    const Walk reached = walk(schedule);
    grid.stop.assign(reached.stop.begin(), reached.stop.end());
  }
  for (const Problem& problem : problems) {
    if (problem.position < 0 || problem.rank < 0) continue;
    const auto rank = static_cast<std::size_t>(problem.rank);
    if (rank < grid.suspect.size()) grid.suspect[rank].push_back(problem.position);
  }
  for (std::vector<int>& positions : grid.suspect) std::sort(positions.begin(), positions.end());
  return grid;
}

std::size_t first_wrong_column(const Schedule& schedule, const Grid& grid) {
  std::size_t first = std::string::npos;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (grid.stop[rank] < schedule.ranks[rank].size()) first = std::min(first, grid.stop[rank]);
    if (!grid.suspect[rank].empty()) {
      first = std::min(first, static_cast<std::size_t>(grid.suspect[rank].front()));
    }
  }
  return first == std::string::npos ? 0 : first;
}

}  // namespace

std::string describe_problems(const Schedule& schedule, const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (problem.rank >= 0) text += fmt::format("rank {}", problem.rank);
    if (problem.position >= 0) text += fmt::format(", position {}", problem.position);
    text += fmt::format("{}{}\n", problem.rank >= 0 ? ": " : "", problem.text);
  }
  const Grid grid = make_grid(schedule, problems);
  std::size_t num_columns = 0;
  for (const std::vector<Pass>& passes : schedule.ranks) {
    num_columns = std::max(num_columns, passes.size());
  }
  std::size_t begin = 0;
  if (num_columns > kMaxColumns) {
    begin = first_wrong_column(schedule, grid);
    begin = std::min(begin - std::min(begin, kColumnsBefore), num_columns - kMaxColumns);
  }
  const std::size_t end = std::min(num_columns, begin + kMaxColumns);
  const bool with_slice = schedule.num_slices > 1;
  const auto cell = [&](std::size_t rank, std::size_t column) {
    std::string pass = to_string(schedule.ranks[rank][column], with_slice);
    const std::vector<int>& suspect = grid.suspect[rank];
    if (column >= grid.stop[rank]) return pass + "!";
    if (std::binary_search(suspect.begin(), suspect.end(), static_cast<int>(column))) {
      return pass + "?";
    }
    return pass;
  };
  std::size_t width = 4;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t column = begin; column < std::min(end, schedule.ranks[rank].size());
         ++column) {
      width = std::max(width, cell(rank, column).size() + 1);
    }
  }
  text += fmt::format("Positions {} to {} of {} ('!': can never run, '?': named above):\n", begin,
                      end == 0 ? 0 : end - 1, num_columns);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string row = fmt::format("rank {:<4}", rank);
    for (std::size_t column = begin; column < std::min(end, schedule.ranks[rank].size());
         ++column) {
      row += fmt::format("{:<{}}", cell(rank, column), width);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

}  // namespace sluice
