// svg_impl.h - what the parts of the SVG writer share. Not API: see svg.h.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/trace/memory.h"
#include "sluice/trace/timeline.h"

namespace sluice::svg {

/// Text with the five characters of XML replaced and control characters dropped.
std::string escape(std::string_view text);

/// `colour` ("#rrggbb") mixed with white; 0 leaves it, 1 is white.
std::string lighten(std::string_view colour, double amount);

/// Whether white text reads better on `colour` than dark text.
bool is_dark(std::string_view colour);

/// Where the plots stand: time runs from `left` over `width` pixels.
struct Frame {
  double left = 0.0;
  double width = 0.0;
  std::int64_t begin = 0;
  std::int64_t end = 1;

  double x(std::int64_t time) const {
    return left + width * static_cast<double>(time - begin) / static_cast<double>(end - begin);
  }
};

/// One square and its words.
struct LegendEntry {
  std::vector<std::string> colours;  // several: the shades of one thing
  std::string text;
};

/// Entries from left to right, in as many lines as they need. Returns the height used.
double draw_legend(fmt::memory_buffer& out, const std::vector<LegendEntry>& entries, double left,
                   double top, double width);

/// A strip per rank from `top` on: bytes by class, stacked. Returns the height used.
double draw_memory(fmt::memory_buffer& out, const MemoryCurve& curve, const Frame& frame,
                   double top);

/// A strip per rank from `top` on: saved activations. Returns the height used.
double draw_activations(fmt::memory_buffer& out, const Timeline& timeline, const Frame& frame,
                        double top);

}  // namespace sluice::svg
