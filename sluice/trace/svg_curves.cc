#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/trace/activations.h"
#include "sluice/trace/svg_impl.h"

namespace sluice::svg {
namespace {

constexpr double kMargin = 20.0;
constexpr double kStripHeight = 26.0;
constexpr double kMemoryStripHeight = 40.0;  // several classes share it
constexpr double kStripGap = 4.0;
constexpr double kHeading = 22.0;
constexpr std::string_view kActivationColour = "#8f85c2";

std::string_view class_colour(std::size_t memory_class) {
  static constexpr std::array<std::string_view, kNumMemoryClasses> kColours = {
      "#475569",  // weights
      "#64748b",  // gradients
      "#94a3b8",  // optimizer
      "#6c5fa7",  // activations
      "#3f9360",  // kv_cache
      "#8cc1a0",  // kv_gradient
      "#e39a3b",  // boundary
      "#a8457f",  // vocabulary
      "#d6ccb8",  // workspace
  };
  return kColours[memory_class];
}

std::string show_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024.0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024.0;
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

struct Point {
  double x;
  double value;
};

/// A step curve with at most one point per quarter pixel, of which the highest is kept.
class Steps {
 public:
  void add(double x, double value) {
    x = std::round(x * 4.0) / 4.0;
    if (!points_.empty() && points_.back().x >= x) {
      points_.back().value = std::max(points_.back().value, value);
    } else {
      points_.push_back({x, value});
    }
  }
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
};

/// Fills the area below a step curve; `base` is the y of zero and `scale` the pixels per value.
void fill_steps(fmt::memory_buffer& out, const Steps& steps, double x_end, double base,
                double scale, std::string_view colour) {
  if (steps.points().empty()) return;
  auto to = std::back_inserter(out);
  fmt::format_to(to, "<path fill=\"{}\" d=\"M{:.2f} {:.2f}", colour, steps.points().front().x,
                 base);
  for (const Point& point : steps.points()) {
    fmt::format_to(to, "H{:.2f}V{:.2f}", point.x, base - point.value * scale);
  }
  fmt::format_to(to, "H{:.2f}V{:.2f}Z\"/>\n", x_end, base);
}

void draw_heading(fmt::memory_buffer& out, double top, std::string_view text) {
  fmt::format_to(std::back_inserter(out),
                 "<text class=\"caption\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kMargin, top + 10.0,
                 escape(text));
}

void draw_strip(fmt::memory_buffer& out, const Frame& frame, double y, double height,
                std::size_t rank, std::string_view peak) {
  fmt::format_to(
      std::back_inserter(out),
      "<text class=\"note\" x=\"{}\" y=\"{:.1f}\">rank {}</text><rect x=\"{:.2f}\" "
      "y=\"{:.2f}\" width=\"{:.2f}\" height=\"{}\" fill=\"#f5f6f8\"/><text class=\"note\" "
      "x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n",
      kMargin, y + height / 2.0 + 4.0, rank, frame.left, y, frame.width, height,
      frame.left + frame.width + 8.0, y + height / 2.0 + 4.0, peak);
}

}  // namespace

double draw_memory(fmt::memory_buffer& out, const MemoryCurve& curve, const Frame& frame,
                   double top) {
  std::vector<std::int64_t> peaks;
  BytesByClass largest{};
  for (const auto& samples : curve.ranks) {
    std::int64_t peak = 0;
    for (const MemorySample& sample : samples) {
      peak = std::max(peak, total_bytes(sample.bytes));
      for (std::size_t c = 0; c < largest.size(); ++c) {
        largest[c] = std::max(largest[c], sample.bytes[c]);
      }
    }
    peaks.push_back(peak);
  }
  const std::int64_t peak = peaks.empty() ? 0 : *std::max_element(peaks.begin(), peaks.end());
  if (peak == 0) return 0.0;

  draw_heading(out, top, "Memory by class; right: the peak of the rank");
  std::vector<LegendEntry> entries;
  for (std::size_t c = 0; c < largest.size(); ++c) {
    if (largest[c] == 0) continue;
    entries.push_back(
        {{std::string(class_colour(c))}, std::string(to_string(static_cast<MemoryClass>(c)))});
  }
  double y = top + kHeading;
  y += draw_legend(out, entries, kMargin, y, frame.left + frame.width - kMargin);
  const double scale = kMemoryStripHeight / static_cast<double>(peak);
  for (std::size_t rank = 0; rank < curve.ranks.size();
       ++rank, y += kMemoryStripHeight + kStripGap) {
    draw_strip(out, frame, y, kMemoryStripHeight, rank,
               show_bytes(static_cast<double>(peaks[rank])));
    // From the full stack down, so that each class covers what lies above the ones below it.
    for (std::size_t c = largest.size(); c-- > 0;) {
      if (largest[c] == 0) continue;
      Steps steps;
      for (const MemorySample& sample : curve.ranks[rank]) {
        std::int64_t below = 0;
        for (std::size_t k = 0; k <= c; ++k) below += sample.bytes[k];
        steps.add(std::clamp(frame.x(sample.time), frame.left, frame.left + frame.width),
                  static_cast<double>(below));
      }
      fill_steps(out, steps, frame.left + frame.width, y + kMemoryStripHeight, scale,
                 class_colour(c));
    }
  }
  return y - top;
}

double draw_activations(fmt::memory_buffer& out, const Timeline& timeline, const Frame& frame,
                        double top) {
  const auto curves = saved_activations(timeline);
  std::vector<std::int64_t> peaks;
  for (const auto& samples : curves) {
    std::int64_t peak = 0;
    for (const ActivationSample& sample : samples) peak = std::max(peak, sample.count);
    peaks.push_back(peak);
  }
  const std::int64_t peak = peaks.empty() ? 0 : *std::max_element(peaks.begin(), peaks.end());
  if (peak == 0) return 0.0;

  draw_heading(out, top,
               "Saved activations; right: peak of the rank, 1 = one microbatch through the whole "
               "model");
  const double passes_per_model =
      static_cast<double>(timeline.num_stages) * static_cast<double>(timeline.num_slices);
  const double scale = kStripHeight / static_cast<double>(peak);
  double y = top + kHeading;
  for (std::size_t rank = 0; rank < curves.size(); ++rank, y += kStripHeight + kStripGap) {
    draw_strip(out, frame, y, kStripHeight, rank,
               fmt::format("{:.4g}", static_cast<double>(peaks[rank]) / passes_per_model));
    Steps steps;
    for (const ActivationSample& sample : curves[rank]) {
      steps.add(frame.x(sample.time), static_cast<double>(sample.count));
    }
    fill_steps(out, steps, frame.left + frame.width, y + kStripHeight, scale, kActivationColour);
  }
  return y - top;
}

}  // namespace sluice::svg
