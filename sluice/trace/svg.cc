#include "sluice/trace/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "sluice/common/errors.h"
#include "sluice/trace/names.h"
#include "sluice/trace/rows.h"
#include "sluice/trace/svg_impl.h"

namespace sluice {
namespace {

constexpr double kMargin = 20.0;
constexpr double kRankNames = 58.0;
constexpr double kPeaks = 70.0;  // right of the plots, for the peaks of the curves
constexpr double kRowHeight = 26.0;
constexpr double kRowStep = 30.0;
constexpr double kPassWidth = 23.0;  // of a pass of typical length, when there is room
constexpr double kDigitWidth = 6.3;
constexpr double kMinPlotWidth = 560.0;
constexpr double kMaxPlotWidth = 1500.0;
constexpr std::size_t kMaxToolTips = 5000;
constexpr std::string_view kOptimizerColour = "#6b7280";
constexpr std::string_view kCopyOutColour = "#7c3aed";
constexpr std::string_view kCopyInColour = "#db2777";
constexpr double kCopyHeight = 4.0;

std::string_view base_colour(PassKind kind) {
  static constexpr std::array<std::string_view, kNumPassKinds> kColours = {
      "#3a6db5",  // F blue
      "#3f9360",  // B green
      "#2b9aa0",  // I teal
      "#e39a3b",  // W amber
      "#7c8798",  // E slate
      "#98a2b0",  // G
      "#a8457f",  // S magenta
      "#c9699e",  // T
      "#8d7b68",  // D brown
      "#a79a8b",  // U
  };
  return kColours[static_cast<std::size_t>(kind)];
}

std::string colour_of(PassKind kind, int chunk, int num_chunks) {
  return svg::lighten(base_colour(kind), 0.6 * chunk / std::max(num_chunks, 2));
}

/// Every (kind, chunk) that occurs, in the order of the legend.
std::vector<std::vector<int>> chunks_by_kind(const Rows& rows) {
  std::vector<std::vector<int>> chunks(kNumPassKinds);
  for (const auto& cells : rows.ranks) {
    for (const Cell& cell : cells) {
      if (cell.is_optimizer) continue;
      auto& seen = chunks[static_cast<std::size_t>(cell.pass.kind)];
      const auto at = std::lower_bound(seen.begin(), seen.end(), cell.chunk);
      if (at == seen.end() || *at != cell.chunk) seen.insert(at, cell.chunk);
    }
  }
  return chunks;
}

class Picture {
 public:
  Picture(const Timeline& timeline, const SvgOptions& options)
      : timeline_(timeline),
        options_(options),
        rows_(picture_rows(timeline)),
        axis_(options.axis ? *options.axis : real_time_axis(timeline)) {
    for (const auto& cells : rows_.ranks) num_cells_ += cells.size();
    if (num_cells_ > static_cast<std::size_t>(kMaxSvgPasses)) {
      throw InvalidArgument(
          fmt::format("an SVG picture of {} passes: it may hold at most {}; take fewer "
                      "microbatches, or write a trace (--trace), which has no limit",
                      num_cells_, kMaxSvgPasses));
    }
    frame_.left = kMargin + kRankNames;
    frame_.width = std::clamp(
        kPassWidth * static_cast<double>(rows_.length()) / static_cast<double>(rows_.typical_ticks),
        kMinPlotWidth, kMaxPlotWidth);
    frame_.begin = rows_.begin;
    frame_.end = std::max(rows_.end, rows_.begin + 1);
  }

  std::string draw() {
    double y = kMargin + draw_title(kMargin);
    y += draw_legend(y) + 8.0;
    y += draw_ranks(y) + 4.0;
    y += draw_axis(y) + 14.0;
    y += options_.memory != nullptr ? svg::draw_memory(body_, *options_.memory, frame_, y)
                                    : svg::draw_activations(body_, timeline_, frame_, y);
    return head(y + kMargin) + fmt::to_string(body_) + "</svg>\n";
  }

 private:
  auto out() { return std::back_inserter(body_); }

  double full_width() const { return frame_.left + frame_.width + kPeaks + kMargin; }

  std::string head(double height) const {
    const std::string title = svg::escape(title_text());
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" "
        "aria-label=\"{2}\">\n<title>{2}</title>\n"
        "<style>\n"
        "text {{ font-family: Helvetica, Arial, sans-serif; fill: #1f2937; }}\n"
        ".title {{ font-size: 16px; font-weight: bold; }}\n"
        ".caption {{ font-size: 12.5px; fill: #4b5563; }}\n"
        ".note {{ font-size: 11.5px; fill: #374151; }}\n"
        ".end {{ text-anchor: end; }}\n"
        ".mid {{ text-anchor: middle; }}\n"
        ".on-dark {{ font-size: 11px; fill: #ffffff; text-anchor: middle; }}\n"
        ".on-light {{ font-size: 11px; fill: #1f2937; text-anchor: middle; }}\n"
        ".small {{ font-size: 9px; }}\n",
        full_width(), height, title);
    const auto chunks = chunks_by_kind(rows_);
    for (std::size_t kind = 0; kind < chunks.size(); ++kind) {
      for (const int chunk : chunks[kind]) {
        const auto pass_kind = static_cast<PassKind>(kind);
        text += fmt::format(".{}{} {{ fill: {}; }}\n", letter(pass_kind), chunk,
                            colour_of(pass_kind, chunk, rows_.num_chunks));
      }
    }
    return text + fmt::format(
                      "</style>\n<rect width=\"{:.0f}\" height=\"{:.0f}\" rx=\"6\" "
                      "fill=\"#ffffff\"/>\n",
                      full_width(), height);
  }

  std::string title_text() const {
    return options_.title.empty() ? timeline_.name : options_.title;
  }

  double draw_title(double top) {
    fmt::format_to(out(), "<text class=\"title\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kMargin,
                   top + 14.0, svg::escape(title_text()));
    std::string caption = options_.caption;
    if (options_.bubble) {
      const BubbleReport& bubble = *options_.bubble;
      caption += fmt::format(
          "{}makespan {}, bubble {:.1f} % of all ranks' time ({:.1f} % by the longest span of a "
          "rank)",
          caption.empty() ? "" : " \u2013 ", show_time(bubble.makespan, axis_),
          100.0 * bubble.bubble_fraction, 100.0 * bubble.span_bubble_fraction);
    }
    if (caption.empty()) return 28.0;
    fmt::format_to(out(), "<text class=\"caption\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kMargin,
                   top + 34.0, svg::escape(caption));
    return 50.0;
  }

  double draw_legend(double top) {
    std::vector<svg::LegendEntry> entries;
    const auto chunks = chunks_by_kind(rows_);
    for (std::size_t kind = 0; kind < chunks.size(); ++kind) {
      if (chunks[kind].empty()) continue;
      svg::LegendEntry entry;
      const auto pass_kind = static_cast<PassKind>(kind);
      for (const int chunk : chunks[kind]) {
        entry.colours.push_back(colour_of(pass_kind, chunk, rows_.num_chunks));
      }
      entry.text = fmt::format("{}  {}", letter(pass_kind), long_name(pass_kind));
      entries.push_back(std::move(entry));
    }
    if (has_optimizer()) entries.push_back({{std::string(kOptimizerColour)}, "optimizer"});
    if (has_copies()) {
      entries.push_back({{std::string(kCopyOutColour)}, "D  copy out"});
      entries.push_back({{std::string(kCopyInColour)}, "U  copy back"});
    }
    if (rows_.num_chunks > 1) entries.push_back({{}, "(lighter: later chunk of the rank)"});
    return svg::draw_legend(body_, entries, kMargin, top, full_width() - 2 * kMargin);
  }

  bool has_optimizer() const {
    for (const auto& cells : rows_.ranks) {
      for (const Cell& cell : cells) {
        if (cell.is_optimizer) return true;
      }
    }
    return false;
  }

  double draw_ranks(double top) {
    for (std::size_t rank = 0; rank < rows_.ranks.size(); ++rank) {
      const double y = top + kRowStep * static_cast<double>(rank);
      fmt::format_to(out(), "<g>\n<text class=\"note\" x=\"{}\" y=\"{:.1f}\">rank {}</text>\n",
                     kMargin, y + 17.0, rank);
      fmt::format_to(out(),
                     "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{}\" "
                     "fill=\"#eef0f3\"/>\n",
                     frame_.left, y, frame_.width, kRowHeight);
      for (const Cell& cell : rows_.ranks[rank]) draw_cell(cell, y);
      for (const Span& span : timeline_.ranks[rank]) draw_copy(span, y);
      fmt::format_to(out(), "</g>\n");
    }
    return kRowStep * static_cast<double>(rows_.ranks.size());
  }

  void draw_cell(const Cell& cell, double y) {
    const double x = frame_.x(cell.begin);
    const double width = frame_.x(cell.end) - x;
    // A hair's breadth between passes, where they are wide enough to spare it.
    const double gap = width > 4.0 ? 1.0 : 0.0;
    const std::string fill =
        cell.is_optimizer ? fmt::format("fill=\"{}\"", kOptimizerColour)
                          : fmt::format("class=\"{}{}\"", letter(cell.pass.kind), cell.chunk);
    fmt::format_to(out(), "<rect {} x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{}\"", fill,
                   x, y, std::max(width - gap, 0.2), kRowHeight);
    if (num_cells_ <= kMaxToolTips) {
      fmt::format_to(out(), "><title>{}</title></rect>", svg::escape(tool_tip(cell)));
    } else {
      fmt::format_to(out(), "/>");
    }
    draw_label(cell, x + (width - gap) / 2.0, y + kRowHeight / 2.0 + 4.0, width - gap);
    fmt::format_to(out(), "\n");
  }

  // Offload copies run beside the passes: a thin bar at the foot of the row.
  void draw_copy(const Span& span, double y) {
    const std::string_view colour = copy_colour(span);
    if (colour.empty() || span.end <= span.begin) return;
    const double x = frame_.x(std::max(span.begin, frame_.begin));
    const double width = frame_.x(std::min(span.end, frame_.end)) - x;
    if (width <= 0.0) return;
    fmt::format_to(out(),
                   "<rect fill=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
                   "height=\"{}\"/>\n",
                   colour, x, y + kRowHeight - kCopyHeight, std::max(width - 0.5, 0.2),
                   kCopyHeight);
  }

  static std::string_view copy_colour(const Span& span) {
    if (span.lane == Lane::kCopyOut) return kCopyOutColour;
    if (span.lane == Lane::kCopyIn) return kCopyInColour;
    return {};
  }

  bool has_copies() const {
    for (const auto& spans : timeline_.ranks) {
      for (const Span& span : spans) {
        if (!copy_colour(span).empty()) return true;
      }
    }
    return false;
  }

  std::string tool_tip(const Cell& cell) const {
    const std::string what =
        cell.is_optimizer ? "optimizer" : to_string(cell.pass, rows_.num_slices > 1);
    return fmt::format("{}: {} to {}", what, show_time(cell.begin - rows_.begin, axis_),
                       show_time(cell.end - rows_.begin, axis_));
  }

  void draw_label(const Cell& cell, double x, double y, double width) {
    if (cell.is_optimizer) return;
    std::string text = std::to_string(cell.pass.microbatch);
    if (rows_.num_slices > 1) text += "." + std::to_string(cell.pass.slice);
    const bool fits = kDigitWidth * static_cast<double>(text.size()) + 3.0 <= width;
    const bool fits_small = 0.8 * kDigitWidth * static_cast<double>(text.size()) + 2.0 <= width;
    if (!fits && !fits_small) return;
    const bool dark = svg::is_dark(colour_of(cell.pass.kind, cell.chunk, rows_.num_chunks));
    fmt::format_to(out(), "<text class=\"{}{}\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>",
                   dark ? "on-dark" : "on-light", fits ? "" : " small", x, fits ? y : y - 1.0,
                   text);
  }

  double draw_axis(double top) {
    const double units = static_cast<double>(frame_.end - frame_.begin) * axis_.unit_per_tick;
    const double step = nice_step(units * 70.0 / frame_.width);
    fmt::format_to(out(),
                   "<line x1=\"{0:.2f}\" y1=\"{1:.2f}\" x2=\"{2:.2f}\" y2=\"{1:.2f}\" "
                   "stroke=\"#9ca3af\"/>\n",
                   frame_.left, top, frame_.left + frame_.width);
    for (int mark = 0; mark * step <= units * (1.0 + 1e-9); ++mark) {
      const double x = frame_.left + frame_.width * mark * step / units;
      fmt::format_to(
          out(),
          "<line x1=\"{0:.2f}\" y1=\"{1:.2f}\" x2=\"{0:.2f}\" y2=\"{2:.2f}\" "
          "stroke=\"#9ca3af\"/><text class=\"note mid\" x=\"{0:.2f}\" y=\"{3:.2f}\">{4:.6g}"
          "</text>\n",
          x, top, top + 5.0, top + 17.0, mark * step);
    }
    fmt::format_to(out(), "<text class=\"note\" x=\"{}\" y=\"{:.2f}\">{}</text>\n", kMargin,
                   top + 17.0, axis_.unit.empty() ? "time" : svg::escape(axis_.unit));
    return 22.0;
  }

  const Timeline& timeline_;
  const SvgOptions& options_;
  Rows rows_;
  TimeAxis axis_;
  svg::Frame frame_;
  std::size_t num_cells_ = 0;
  fmt::memory_buffer body_;
};

}  // namespace

std::string draw_svg(const Timeline& timeline, const SvgOptions& options) {
  return Picture(timeline, options).draw();
}

}  // namespace sluice
