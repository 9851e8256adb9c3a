#include "sluice/schedule/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

constexpr std::string_view kOverlap = ")OVERLAP_F_B";
// PyTorch's names for what lowering adds; "UNSHARD" also stands at the end of "RESHARD" lists.
constexpr std::array<std::string_view, 7> kCommunication{
    "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"};
// No schedule has more of anything, and counts stay far from overflow.
constexpr std::int32_t kMaxIndex = 1 << 30;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

/// Cuts the text up to the next `separator` (or the end) off the front of `rest`.
std::string_view take_until(std::string_view& rest, char separator) {
  const std::size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

/// Where a cell stands, both counted from 1 as in an editor or a spreadsheet.
struct Cell {
  int row = 0;
  int column = 0;
  std::string_view text;
};

[[noreturn]] void fail(const Cell& cell, std::string_view what) {
  constexpr std::size_t kMaxShown = 60;
  const std::string_view shown = cell.text.substr(0, kMaxShown);
  throw InvalidArgument(fmt::format("row {}, column {}: '{}'{} {}", cell.row, cell.column, shown,
                                    shown.size() < cell.text.size() ? "..." : "", what));
}

bool is_communication(std::string_view text) {
  const std::size_t begin = text.find_first_not_of("0123456789");
  if (begin == std::string_view::npos || begin == 0) return false;
  text.remove_prefix(begin);
  return std::any_of(kCommunication.begin(), kCommunication.end(),
                     [&](std::string_view name) { return text.starts_with(name); });
}

Pass read_pass(const Cell& cell, std::string_view text) {
  std::optional<Pass> pass;
  try {
    pass = parse_pass(text);
  } catch (const InvalidArgument&) {
    fail(cell,
         "is not a pass: write stage, letter (F, B, I, W, E, G, S, T, D or U), microbatch and "
         "perhaps .slice, such as 2F0 or 2F0.3");
  }
  if (std::max({pass->stage, pass->microbatch, pass->slice}) >= kMaxIndex) {
    fail(cell, "has a number that no schedule can have: use numbers below 2^30");
  }
  return *pass;
}

/// A cell with one pass, or PyTorch's pair "(0F5;7B2)OVERLAP_F_B", which runs one after the other.
void read_cell(const Cell& cell, std::vector<Pass>& passes) {
  std::string_view text = cell.text;
  if (is_communication(text)) {
    fail(cell,
         "is communication, which sluice adds by itself: export the schedule with "
         "format=\"compute_only\"");
  }
  if (!text.starts_with('(') || !text.ends_with(kOverlap)) {
    passes.push_back(read_pass(cell, text));
    return;
  }
  text.remove_prefix(1);
  text.remove_suffix(kOverlap.size());
  const std::size_t separator = text.find(';');
  if (separator == std::string_view::npos) {
    fail(cell, "needs two passes: write (0F5;7B2)OVERLAP_F_B");
  }
  passes.push_back(read_pass(cell, trim(text.substr(0, separator))));
  passes.push_back(read_pass(cell, trim(text.substr(separator + 1))));
}

/// Places every stage on the first row that has one of its passes.
Placement find_placement(const std::vector<std::vector<Pass>>& ranks) {
  std::int64_t num_passes = 0;
  std::int32_t num_stages = 0;
  for (const std::vector<Pass>& passes : ranks) {
    num_passes += static_cast<std::int64_t>(passes.size());
    for (const Pass& pass : passes) {
      if (is_stage_pass(pass.kind)) num_stages = std::max(num_stages, pass.stage + 1);
    }
  }
  // Checked before a vector of that size is made: a number may be anything.
  if (num_stages > num_passes) {
    throw InvalidArgument(fmt::format(
        "stage {} occurs, but {} passes are too few for that many stages: number stages from 0 "
        "without gaps",
        num_stages - 1, num_passes));
  }
  std::vector<int> rank_of_stage(static_cast<std::size_t>(num_stages), -1);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Pass& pass : ranks[rank]) {
      if (!is_stage_pass(pass.kind)) continue;
      int& place = rank_of_stage[static_cast<std::size_t>(pass.stage)];
      if (place < 0) place = static_cast<int>(rank);
    }
  }
  const auto gap = std::find(rank_of_stage.begin(), rank_of_stage.end(), -1);
  if (gap != rank_of_stage.end()) {
    throw InvalidArgument(fmt::format(
        "stage {} occurs, but no row has a pass of stage {}: number stages from 0 without gaps",
        num_stages - 1, gap - rank_of_stage.begin()));
  }
  return Placement(std::move(rank_of_stage), static_cast<int>(ranks.size()));
}

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string csv;
  csv.reserve(static_cast<std::size_t>(schedule.num_passes()) * 8);
  for (const std::vector<Pass>& passes : schedule.ranks) {
    for (const Pass& pass : passes) {
      if (&pass != &passes.front()) csv += ',';
      fmt::format_to(std::back_inserter(csv), "{}{}{}", pass.stage, letter(pass.kind),
                     pass.microbatch);
      if (schedule.num_slices > 1) fmt::format_to(std::back_inserter(csv), ".{}", pass.slice);
    }
    csv += '\n';
  }
  return csv;
}

Schedule from_csv(std::string_view csv, std::string name) {
  Schedule schedule;
  schedule.name = std::move(name);
  // Idle lines at the end are no ranks; elsewhere a line without passes is a rank without passes.
  csv = csv.substr(0, csv.find_last_not_of(" \t\r\n,") + 1);
  for (int row = 1; !csv.empty(); ++row) {
    std::string_view line = take_until(csv, '\n');
    std::vector<Pass>& passes = schedule.ranks.emplace_back();
    for (int column = 1; !line.empty(); ++column) {
      const Cell cell{.row = row, .column = column, .text = trim(take_until(line, ','))};
      if (!cell.text.empty()) read_cell(cell, passes);
    }
    for (const Pass& pass : passes) {
      schedule.num_microbatches = std::max(schedule.num_microbatches, pass.microbatch + 1);
      schedule.num_slices = std::max(schedule.num_slices, pass.slice + 1);
    }
  }
  if (schedule.num_passes() == 0) {
    throw InvalidArgument("there are no passes: write one row per rank with cells such as 0F0");
  }
  schedule.placement = find_placement(schedule.ranks);
  return schedule;
}

}  // namespace sluice
