#include "sluice/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/files.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

/// The file up to the last line that a run resumed at `step` keeps.
std::string kept_lines(const std::string& text, std::int64_t step, const std::string& origin) {
  std::size_t kept = 0, begin = 0;
  for (std::size_t line = 1; begin < text.size(); ++line) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // cut by a crash
    const auto object =
        ordered_json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                            text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) {
      throw Failure(fmt::format("{} line {} is not a line of metrics; move the file away to resume",
                                origin, line));
    }
    if (object["step"].get<std::int64_t>() > step) break;
    begin = kept = end + 1;
  }
  return text.substr(0, kept);
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  ordered_json object;
  object["step"] = metrics.step;
  object["loss"] = metrics.loss;
  object["grad_norm"] = metrics.grad_norm;
  object["lr"] = metrics.learning_rate;
  object["tokens"] = metrics.tokens;
  object["tokens_per_second"] = metrics.tokens_per_second;
  object["step_seconds"] = metrics.step_seconds;
  object["mfu"] = metrics.mfu ? ordered_json(*metrics.mfu) : ordered_json(nullptr);
  return object.dump();
}

std::string metrics_line(const ValidationMetrics& metrics) {
  ordered_json object;
  object["step"] = metrics.step;
  object["validation_loss"] = metrics.loss;
  object["validation_tokens"] = metrics.tokens;
  return object.dump();
}

std::string metrics_line(const RankMetrics& metrics) {
  ordered_json object;
  object["step"] = metrics.step;
  object["rank"] = metrics.rank;
  object["step_seconds"] = metrics.step_seconds;
  object["compute_seconds"] = metrics.compute_seconds;
  object["peak_bytes"] = metrics.peak_bytes;
  return object.dump();
}

MetricsWriter::MetricsWriter(std::filesystem::path path, std::int64_t resumed_step)
    : path_(std::move(path)) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path_, error)) {
    constexpr std::int64_t kLargest = std::int64_t{1} << 32;
    const std::string kept = resumed_step == 0 ? ""
                                               : kept_lines(read_text_file(path_, kLargest),
                                                            resumed_step, path_.string());
    if (::truncate(path_.c_str(), static_cast<off_t>(kept.size())) != 0) {
      throw Failure(
          fmt::format("cannot cut {}: {}", path_.string(), std::generic_category().message(errno)));
    }
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw Failure(
        fmt::format("cannot open {}: {}", path_.string(), std::generic_category().message(errno)));
  }
}

MetricsWriter::~MetricsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsWriter::write(const StepMetrics& metrics) { write_line(metrics_line(metrics)); }
void MetricsWriter::write(const ValidationMetrics& metrics) { write_line(metrics_line(metrics)); }

void MetricsWriter::write(const RankMetrics& metrics) { write_line(metrics_line(metrics)); }

void MetricsWriter::write_line(std::string line) {
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t n = ::write(descriptor_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Failure(fmt::format("cannot write {}: {}; free space or set run.dir to another disk",
                                path_.string(), std::generic_category().message(errno)));
    }
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string short_count(double value) {
  if (!std::isfinite(value)) return "?";
  constexpr std::pair<double, char> kUnits[] = {{1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}};
  for (const auto& [unit, letter] : kUnits) {
    // What rounds up to the next unit is written in it: 1M rather than 1000k.
    if (value >= 0.9995 * unit) return fmt::format("{:.3g}{}", value / unit, letter);
  }
  return fmt::format("{:.0f}", value);
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0.0) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e12)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string progress_line(const StepMetrics& metrics, std::int64_t total_steps,
                          double seconds_left) {
  const auto width = fmt::formatted_size("{}", total_steps);
  const std::string mfu =
      metrics.mfu ? fmt::format("  mfu {:.1f} %", *metrics.mfu * 100.0) : std::string();
  return fmt::format("step {:>{}}/{}  loss {:.4f}  norm {:.3g}  lr {:.2e}  {} tokens/s{}  left {}",
                     metrics.step, width, total_steps, metrics.loss, metrics.grad_norm,
                     metrics.learning_rate, short_count(metrics.tokens_per_second), mfu,
                     short_duration(seconds_left));
}

std::string progress_line(const ValidationMetrics& metrics, std::int64_t total_steps) {
  const auto width = fmt::formatted_size("{}", total_steps);
  return fmt::format("step {:>{}}/{}  validation loss {:.4f}  over {} tokens", metrics.step, width,
                     total_steps, metrics.loss, short_count(static_cast<double>(metrics.tokens)));
}

}  // namespace sluice
