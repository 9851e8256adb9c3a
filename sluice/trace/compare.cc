#include "sluice/trace/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <string_view>

#include "sluice/common/errors.h"
#include "sluice/trace/names.h"

namespace sluice {
namespace {

struct Mean {
  double ticks = 0.0;
  std::int64_t count = 0;
};

std::array<Mean, kNumPassKinds> means_by_kind(const Timeline& timeline) {
  std::array<Mean, kNumPassKinds> means{};
  for (const auto& spans : timeline.ranks) {
    for (const Span& span : spans) {
      if (span.kind != ActionKind::kPass) continue;
      Mean& mean = means[static_cast<std::size_t>(span.pass.kind)];
      mean.ticks += static_cast<double>(span.end - span.begin);
      ++mean.count;
    }
  }
  for (Mean& mean : means) mean.ticks /= static_cast<double>(std::max<std::int64_t>(mean.count, 1));
  return means;
}

double seconds_of(const Timeline& timeline, double ticks) {
  return ticks * timeline.seconds_per_tick;
}

std::string show_table(const std::vector<Comparison>& rows, std::string_view unit,
                       const std::function<double(double)>& in_unit) {
  std::size_t width = 4;
  for (const Comparison& row : rows) width = std::max(width, row.what.size());
  std::string text =
      fmt::format("{:<{}}  {:>14}  {:>14}  {:>18}\n", "", width, fmt::format("predicted {}", unit),
                  fmt::format("measured {}", unit), "measured/predicted");
  for (const Comparison& row : rows) {
    text += fmt::format("{:<{}}  {:>14.3f}  {:>14.3f}  {:>18.3f}\n", row.what, width,
                        in_unit(row.predicted), in_unit(row.measured), row.ratio());
  }
  return text;
}

}  // namespace

double Comparison::ratio() const {
  if (predicted == measured) return 1.0;
  if (predicted == 0.0) return std::numeric_limits<double>::infinity();
  return measured / predicted;
}

std::vector<Comparison> compare_times(const Timeline& predicted, const Timeline& measured) {
  const auto length = [](const Timeline& timeline) {
    return seconds_of(timeline, static_cast<double>(timeline.end() - timeline.begin()));
  };
  std::vector<Comparison> rows = {{"makespan", length(predicted), length(measured)}};
  const auto expected = means_by_kind(predicted);
  const auto seen = means_by_kind(measured);
  for (std::size_t kind = 0; kind < expected.size(); ++kind) {
    if (expected[kind].count == 0 && seen[kind].count == 0) continue;
    const auto pass_kind = static_cast<PassKind>(kind);
    rows.push_back({fmt::format("{} {}, mean", letter(pass_kind), long_name(pass_kind)),
                    seconds_of(predicted, expected[kind].ticks),
                    seconds_of(measured, seen[kind].ticks)});
  }
  return rows;
}

std::vector<Comparison> compare_memory(const std::vector<MemoryPeaks>& predicted,
                                       const std::vector<MemoryPeaks>& measured) {
  SLUICE_CHECK(predicted.size() == measured.size(), "{} and {} ranks", predicted.size(),
               measured.size());
  std::vector<Comparison> rows;
  for (std::size_t rank = 0; rank < predicted.size(); ++rank) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(kNumMemoryClasses); ++c) {
      const auto expected = static_cast<double>(predicted[rank].by_class[c]);
      const auto seen = static_cast<double>(measured[rank].by_class[c]);
      if (expected == 0.0 && seen == 0.0) continue;
      rows.push_back({fmt::format("rank {} {}", rank, to_string(static_cast<MemoryClass>(c))),
                      expected, seen});
    }
    rows.push_back({fmt::format("rank {} total", rank), static_cast<double>(predicted[rank].total),
                    static_cast<double>(measured[rank].total)});
  }
  return rows;
}

std::string show_times(const std::vector<Comparison>& rows) {
  return show_table(rows, "ms", [](double seconds) { return seconds * 1e3; });
}

std::string show_memory(const std::vector<Comparison>& rows) {
  return show_table(rows, "MiB", [](double bytes) { return bytes / (1024.0 * 1024.0); });
}

}  // namespace sluice
