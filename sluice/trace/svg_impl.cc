#include "sluice/trace/svg_impl.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace sluice::svg {
namespace {

std::array<int, 3> channels(std::string_view colour) {
  std::array<int, 3> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int>(
        std::strtol(std::string(colour.substr(1 + 2 * i, 2)).c_str(), nullptr, 16));
  }
  return values;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string safe;
  for (const char character : text) {
    switch (character) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&apos;";
        break;
      default:
        if (static_cast<unsigned char>(character) >= 0x20) safe += character;
    }
  }
  return safe;
}

std::string lighten(std::string_view colour, double amount) {
  std::string text = "#";
  for (const int value : channels(colour)) {
    text += fmt::format("{:02x}", std::lround(value + (255 - value) * amount));
  }
  return text;
}

bool is_dark(std::string_view colour) {
  const auto rgb = channels(colour);
  return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 138.0;
}

double draw_legend(fmt::memory_buffer& out, const std::vector<LegendEntry>& entries, double left,
                   double top, double width) {
  constexpr double kLine = 20.0;
  constexpr double kSquare = 12.0;
  double x = left;
  double y = top;
  for (const LegendEntry& entry : entries) {
    const double squares = kSquare * static_cast<double>(entry.colours.size());
    const double length = squares + 6.0 + 6.2 * static_cast<double>(entry.text.size()) + 16.0;
    if (x > left && x + length > left + width) {
      x = left;
      y += kLine;
    }
    for (std::size_t i = 0; i < entry.colours.size(); ++i) {
      fmt::format_to(std::back_inserter(out),
                     R"(<rect x="{:.1f}" y="{:.1f}" width="12" height="12" fill="{}"/>)",
                     x + kSquare * static_cast<double>(i), y, entry.colours[i]);
    }
    fmt::format_to(std::back_inserter(out),
                   "<text class=\"note\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + squares + 6.0,
                   y + 10.0, escape(entry.text));
    x += length;
  }
  return y - top + kLine;
}

}  // namespace sluice::svg
