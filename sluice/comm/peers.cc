#include "sluice/comm/peers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

namespace sluice {
namespace {

constexpr std::uint64_t kLow52 = (std::uint64_t{1} << 52) - 1;

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// State letter and start time from /proc/PID/stat; nothing when there is no such process.
struct ProcessStatus {
  char state = '?';
  std::int64_t start = 0;
};
std::optional<ProcessStatus> status_of(std::int64_t pid) {
  const std::string text = read_all(fmt::format("/proc/{}/stat", pid));
  // The name in parentheses may hold anything; what follows the last one does not.
  const auto end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  ProcessStatus status;
  std::string skipped;
  fields >> status.state;
  constexpr int kFieldsBetween = 18;  // from ppid to itrealvalue
  for (int i = 0; i < kFieldsBetween; ++i) fields >> skipped;
  fields >> status.start;
  return fields ? std::optional(status) : std::nullopt;
}

std::uint64_t machine_hash() {
  std::string text = read_all("/proc/sys/kernel/random/boot_id");
  std::array<char, 64> name_space{};
  const auto length = readlink("/proc/self/ns/pid", name_space.data(), name_space.size());
  if (length > 0) text.append(name_space.data(), static_cast<std::size_t>(length));
  return std::hash<std::string>{}(text)&kLow52;
}

}  // namespace

ProcessName this_process() {
  const auto status = status_of(getpid());
  return {machine_hash(), getpid(), status ? status->start : 0};
}

std::vector<double> to_doubles(const ProcessName& name) {
  return {static_cast<double>(name.machine), static_cast<double>(name.pid),
          static_cast<double>(name.start)};
}

ProcessName process_name(const std::vector<double>& numbers) {
  return {static_cast<std::uint64_t>(numbers.at(0)), static_cast<std::int64_t>(numbers.at(1)),
          static_cast<std::int64_t>(numbers.at(2))};
}

bool is_alive(const ProcessName& name, const ProcessName& self) {
  if (name.machine != self.machine || self.start == 0 || name.start == 0) return true;
  const auto status = status_of(name.pid);
  return status && status->start == name.start && status->state != 'Z' && status->state != 'X';
}

}  // namespace sluice
