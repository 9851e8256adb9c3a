#include "sluice/cli/output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "sluice/cli/table.h"
#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice::cli {
namespace {

constexpr int kDefaultColumns = 128;
constexpr int kMaxPictureRanks = 64;
constexpr std::int64_t kMaxPicturePasses = 200'000;

std::string count(int number, std::string_view one) {
  return fmt::format("{} {}{}", number, one, number == 1 ? "" : one.ends_with('h') ? "es" : "s");
}

}  // namespace

int report(ExitCode code, std::string message) {
  std::replace_if(
      message.begin(), message.end(),
      [](char character) { return static_cast<unsigned char>(character) < 0x20; }, ' ');
  // In one write: the lines of several processes must not mix.
  const std::string line = fmt::format("sluice: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  return static_cast<int>(code);
}

int report_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& invalid) {
    return report(ExitCode::kWrongUse, invalid.what());
  } catch (const CommError& lost) {
    return report(ExitCode::kPeerLost, lost.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::kFailed, "out of memory; ask for less, or use a machine with more");
  } catch (const std::exception& other) {
    return report(ExitCode::kFailed, other.what());
  }
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Failure(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  }
}

GridOptions grid_options() {
  GridOptions options;
  options.max_columns = kDefaultColumns;
  if (isatty(STDOUT_FILENO) == 0) return options;
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    options.max_columns = window.ws_col;
  }
  const char* no_colour = std::getenv("NO_COLOR");
  options.colour = no_colour == nullptr || *no_colour == '\0';
  return options;
}

bool fits_picture(const Schedule& schedule) {
  return schedule.num_ranks() <= kMaxPictureRanks && schedule.num_passes() <= kMaxPicturePasses;
}

std::string describe_sizes(const Schedule& schedule) {
  const auto chunks = static_cast<int>(schedule.placement.stages_of(0).size());
  std::string text = count(schedule.num_ranks(), "rank");
  if (chunks > 1) text += ", " + count(chunks, "chunk");
  text += ", " + count(schedule.num_microbatches, "microbatch");
  if (schedule.num_slices > 1) text += ", " + count(schedule.num_slices, "slice");
  return text;
}

std::string show_settings(const ScheduleOptions& options, const ResolvedSchedule& resolved) {
  const Schedule& schedule = resolved.schedule;
  std::vector<std::vector<std::string>> rows = {
      {"schedule", fmt::format("{}: {}", options.name, find_schedule(options.name).summary)},
      {"ranks", std::to_string(schedule.num_ranks())},
      {"microbatches", std::to_string(schedule.num_microbatches)},
      {"chunks", std::to_string(schedule.placement.stages_of(0).size())},
      {"slices", std::to_string(schedule.num_slices)},
  };
  if (options.group > 0) rows.push_back({"group", std::to_string(options.group)});
  rows.push_back({"times", resolved.times});
  rows.push_back({"p2p", resolved.cost.message_ticks_of_rank.empty()
                             ? show_time(resolved.cost.message_ticks, resolved.axis)
                             : "of the sender, from " + options.costs_path});
  return table(rows);
}

}  // namespace sluice::cli
