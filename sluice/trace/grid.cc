#include "sluice/trace/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/trace/names.h"
#include "sluice/trace/rows.h"
#include "sluice/trace/unit_time.h"

namespace sluice {
namespace {

constexpr char kIdle = '.';
constexpr std::string_view kCut = " ~ ";

/// How much of a pass its cell tells.
enum class Label { kStage, kMicrobatch, kSlice, kLetter };

struct Style {
  Label label = Label::kStage;
  bool gaps = true;  // a blank after every pass
};

/// Columns [first, last) of the whole picture that are shown side by side.
struct Window {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

struct Layout {
  Style style;
  double columns_per_tick = 1.0;
  std::vector<Window> windows;  // one, or beginning and end
};

// Background of the first chunk, in the 256-colour palette; later chunks take the next, lighter
// ones.
struct Ramp {
  std::array<int, 3> background;
};

const Ramp& ramp(const Cell& cell) {
  static constexpr Ramp kOptimizer = {{240, 240, 240}};
  static constexpr std::array<Ramp, kNumPassKinds> kByKind = {{
      {{26, 68, 110}},    // F blue
      {{28, 71, 114}},    // B green
      {{30, 37, 80}},     // I teal
      {{130, 172, 215}},  // W amber
      {{61, 61, 61}},     // E
      {{60, 60, 60}},     // G
      {{125, 125, 125}},  // S
      {{89, 89, 89}},     // T
      {{243, 243, 243}},  // D
      {{245, 245, 245}},  // U
  }};
  return cell.is_optimizer ? kOptimizer : kByKind[static_cast<std::size_t>(cell.pass.kind)];
}

char letter_of(const Cell& cell, bool lower_second_chunk) {
  if (cell.is_optimizer) return 'o';
  const char upper = letter(cell.pass.kind);
  const bool lower = lower_second_chunk && cell.chunk == 1;
  return lower ? static_cast<char>(std::tolower(static_cast<unsigned char>(upper))) : upper;
}

std::string label_of(const Cell& cell, const Rows& rows, Label label) {
  const bool lower = label != Label::kStage && rows.num_chunks == 2;
  std::string text(1, letter_of(cell, lower));
  if (cell.is_optimizer || label == Label::kLetter) return text;
  if (label == Label::kSlice) return text + std::to_string(cell.pass.slice);
  text += std::to_string(cell.pass.microbatch);
  if (rows.num_slices > 1) text += "." + std::to_string(cell.pass.slice);
  const bool with_stage = label == Label::kStage && rows.num_chunks > 1;
  return with_stage ? std::to_string(cell.pass.stage) + text : text;
}

std::size_t longest_label(const Rows& rows, Label label) {
  std::size_t longest = 1;
  for (const auto& cells : rows.ranks) {
    for (const Cell& cell : cells) {
      longest = std::max(longest, label_of(cell, rows, label).size());
    }
  }
  return longest;
}

Layout choose_layout(const Rows& rows, std::int64_t columns) {
  std::vector<Style> styles = {{Label::kStage, true}};
  // Without stage numbers two chunks can still be told apart, by case; more cannot.
  if (rows.num_chunks == 2) styles.push_back({Label::kMicrobatch, true});
  if (rows.num_chunks <= 2) styles.push_back({Label::kMicrobatch, false});
  const Style narrowest_readable = styles.back();
  if (rows.num_slices > 1) styles.push_back({Label::kSlice, false});
  styles.push_back({Label::kLetter, false});

  const auto columns_per_tick = [&](const Style& style) {
    const std::size_t width = longest_label(rows, style.label) + (style.gaps ? 1 : 0);
    return static_cast<double>(width) / static_cast<double>(rows.typical_ticks);
  };
  const auto total = [&](double scale) {
    return std::llround(static_cast<double>(rows.length()) * scale);
  };
  for (const Style& style : styles) {
    const double scale = columns_per_tick(style);
    if (total(scale) <= columns) return {style, scale, {{0, total(scale)}}};
  }
  const double scale = columns_per_tick(narrowest_readable);
  const std::int64_t shown = columns - static_cast<std::int64_t>(kCut.size());
  const std::int64_t head = shown * 3 / 5;
  const std::int64_t all = total(scale);
  return {narrowest_readable, scale, {{0, head}, {all - (shown - head), all}}};
}

/// One line of characters, each with the cell that it belongs to (null: idle).
struct Canvas {
  std::string text;
  std::vector<const Cell*> owner;
};

class Painter {
 public:
  Painter(const Rows& rows, const Layout& layout, const GridOptions& options)
      : rows_(rows), layout_(layout), options_(options) {}

  std::string row(std::size_t rank) const {
    std::string line;
    for (const Window& window : layout_.windows) {
      if (!line.empty()) line += kCut;
      line += coloured(paint(rows_.ranks[rank], window));
    }
    line.erase(line.find_last_not_of(' ') + 1);  // the gap after a pass that ends the row
    return line;
  }

  /// How many (stage, slice) a rank keeps for their backward, under each of its passes.
  std::string held(std::size_t rank) const {
    std::string line;
    for (const Window& window : layout_.windows) {
      if (!line.empty()) line += std::string(kCut.size(), ' ');
      line += held(rows_.ranks[rank], window);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }

  /// Numbers under the columns of round times.
  std::string times(const TimeAxis& axis) const {
    const double units_per_column = axis.unit_per_tick / layout_.columns_per_tick;
    const double step = nice_step(10.0 * units_per_column);
    std::string line;
    for (const Window& window : layout_.windows) {
      if (!line.empty()) line += std::string(kCut.size(), ' ');
      line += times(window, step, units_per_column);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    return axis.unit.empty() ? line : line + " " + axis.unit;
  }

 private:
  std::int64_t column(std::int64_t time) const {
    return std::llround(static_cast<double>(time - rows_.begin) * layout_.columns_per_tick);
  }

  Canvas paint(const std::vector<Cell>& cells, const Window& window) const {
    const auto width = static_cast<std::size_t>(window.last - window.first);
    Canvas canvas{std::string(width, options_.colour ? ' ' : kIdle),
                  std::vector<const Cell*>(width, nullptr)};
    for (const Cell& cell : cells) {
      const std::int64_t first = column(cell.begin);
      const std::int64_t last = column(cell.end);
      if (last <= window.first) continue;
      if (first >= window.last) break;
      const std::string text = cell_text(cell, last - first);
      for (std::int64_t c = std::max(first, window.first); c < std::min(last, window.last); ++c) {
        const auto at = static_cast<std::size_t>(c - window.first);
        const char character = text[static_cast<std::size_t>(c - first)];
        canvas.text[at] = character;
        canvas.owner[at] = layout_.style.gaps && c == last - 1 ? nullptr : &cell;
      }
    }
    return canvas;
  }

  std::string held(const std::vector<Cell>& cells, const Window& window) const {
    std::string line(static_cast<std::size_t>(window.last - window.first), ' ');
    int count = 0;
    for (const Cell& cell : cells) {
      if (cell.is_optimizer) continue;
      if (cell.pass.kind == PassKind::kForward) ++count;
      const std::string text = std::to_string(count);
      const std::int64_t first = column(cell.begin) - window.first;
      const auto end = std::min(column(cell.end) - window.first, window.last - window.first);
      if (first >= 0 && first + static_cast<std::int64_t>(text.size()) <= end) {
        line.replace(static_cast<std::size_t>(first), text.size(), text);
      }
      if (cell.pass.kind == PassKind::kBackward || cell.pass.kind == PassKind::kBackwardWeight) {
        --count;
      }
    }
    return line;
  }

  std::string cell_text(const Cell& cell, std::int64_t num_columns) const {
    const auto width = static_cast<std::size_t>(num_columns);
    std::string text = label_of(cell, rows_, layout_.style.label);
    if (text.size() > width) text = label_of(cell, rows_, Label::kLetter);
    text.resize(width, options_.colour ? ' ' : '-');
    if (layout_.style.gaps && width > 1) text.back() = ' ';
    return text;
  }

  std::string coloured(const Canvas& canvas) const {
    if (!options_.colour) return canvas.text;
    std::string line;
    const Cell* current = nullptr;
    for (std::size_t at = 0; at < canvas.text.size(); ++at) {
      const Cell* cell = canvas.owner[at];
      if (cell != current) {
        line += cell == nullptr ? "\x1b[0m" : colour_code(*cell);
        current = cell;
      }
      line += canvas.text[at];
    }
    return current == nullptr ? line : line + "\x1b[0m";
  }

  static std::string colour_code(const Cell& cell) {
    const auto& backgrounds = ramp(cell).background;
    const auto shade = std::min(static_cast<std::size_t>(cell.chunk), backgrounds.size() - 1);
    const int text = shade == 0 ? 231 : 16;
    return fmt::format("\x1b[38;5;{};48;5;{}m", text, backgrounds[shade]);
  }

  static std::string times(const Window& window, double step, double units_per_column) {
    std::string line(static_cast<std::size_t>(window.last - window.first), ' ');
    std::size_t free_from = 0;
    auto mark =
        std::llround(std::ceil(static_cast<double>(window.first) * units_per_column / step - 1e-9));
    for (;; ++mark) {
      const double time = static_cast<double>(mark) * step;
      const std::int64_t column = std::llround(time / units_per_column) - window.first;
      const std::string text = fmt::format("{:.6g}", time);
      if (column < 0) continue;
      const auto at = static_cast<std::size_t>(column);
      if (at + text.size() > line.size()) break;
      if (at < free_from) continue;
      line.replace(at, text.size(), text);
      free_from = at + text.size() + 1;
    }
    return line;
  }

  const Rows& rows_;
  const Layout& layout_;
  const GridOptions& options_;
};

// With slices the first rank's count shows why memory is flat: each backward makes room for the
// forward after it.
bool shows_held(const Rows& rows, const Layout& layout) {
  if (rows.num_slices == 1 || layout.style.label == Label::kLetter) return false;
  return std::any_of(rows.ranks[0].begin(), rows.ranks[0].end(), [](const Cell& cell) {
    return !cell.is_optimizer &&
           (cell.pass.kind == PassKind::kBackward || cell.pass.kind == PassKind::kBackwardWeight);
  });
}

std::string legend(const Rows& rows, const Layout& layout) {
  std::array<bool, kNumPassKinds> seen{};
  bool has_optimizer = false;
  for (const auto& cells : rows.ranks) {
    for (const Cell& cell : cells) {
      if (cell.is_optimizer) {
        has_optimizer = true;
      } else {
        seen[static_cast<std::size_t>(cell.pass.kind)] = true;
      }
    }
  }
  std::string text;
  for (std::size_t kind = 0; kind < seen.size(); ++kind) {
    if (!seen[kind]) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", letter(static_cast<PassKind>(kind)),
                        long_name(static_cast<PassKind>(kind)));
  }
  if (has_optimizer) text += ", o optimizer";
  const std::string slice = rows.num_slices > 1 ? ".slice" : "";
  if (layout.style.label == Label::kSlice) {
    text += "; a cell: letter, slice";
  } else if (layout.style.label != Label::kLetter) {
    const bool with_stage = layout.style.label == Label::kStage && rows.num_chunks > 1;
    text += fmt::format("; a cell: {}letter, microbatch{}", with_stage ? "stage, " : "", slice);
  }
  if (layout.style.label != Label::kStage && rows.num_chunks == 2) {
    text += "; lower case: second chunk";
  }
  if (shows_held(rows, layout)) text += "; held: slices that rank 0 keeps for their backward";
  if (layout.windows.size() > 1) text += "; middle left out";
  return text;
}

}  // namespace

std::string draw_grid(const Timeline& timeline, const GridOptions& options) {
  const Rows rows = picture_rows(timeline);
  if (rows.length() == 0) return {};
  const std::size_t digits = std::to_string(rows.ranks.size() - 1).size();
  const std::string margin(std::string_view("rank ").size() + digits + 2, ' ');
  const auto room =
      static_cast<std::int64_t>(options.max_columns) - static_cast<std::int64_t>(margin.size());
  const Layout layout = choose_layout(rows, std::max<std::int64_t>(room, 20));
  const Painter painter(rows, layout, options);

  std::string text;
  for (std::size_t rank = 0; rank < rows.ranks.size(); ++rank) {
    text += fmt::format("rank {:>{}}  {}\n", rank, digits, painter.row(rank));
  }
  if (shows_held(rows, layout)) {
    text += fmt::format("{:<{}}{}\n", "held", margin.size(), painter.held(0));
  }
  const TimeAxis axis = options.axis ? *options.axis : real_time_axis(timeline);
  text += fmt::format("{:<{}}{}\n", "time", margin.size(), painter.times(axis));
  text += legend(rows, layout) + "\n";
  return text;
}

std::string draw_grid(const Schedule& schedule, const GridOptions& options) {
  GridOptions with_axis = options;
  if (!with_axis.axis) with_axis.axis = TimeAxis{1.0, ""};
  return draw_grid(unit_time(schedule), with_axis);
}

}  // namespace sluice
