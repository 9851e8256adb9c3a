// svg.h - a Timeline as a self-contained SVG picture, for a README, a paper or a browser.
#pragma once

#include <optional>
#include <string>

#include "sluice/trace/axis.h"
#include "sluice/trace/memory.h"
#include "sluice/trace/timeline.h"

namespace sluice {

struct SvgOptions {
  std::string title;                    // default: the timeline's name
  std::string caption;                  // a line below the title
  std::optional<TimeAxis> axis;         // default: real_time_axis(timeline)
  std::optional<BubbleReport> bubble;   // adds makespan and bubble to the caption
  const MemoryCurve* memory = nullptr;  // bytes by class below the ranks; null: saved activations
};

/// The most passes a picture may hold; more would be finer than the pixels of any screen.
inline constexpr int kMaxSvgPasses = 100'000;

/// Draws the compute lanes: ranks as rows, passes as rectangles coloured by kind and lighter by
/// chunk, with the microbatch where it fits and the exact times as a tool tip. Below stand the
/// times and, per rank, its memory curve, or the activations it has saved in units of one
/// microbatch through the whole model. Text is escaped; the file needs no other one. Throws:
/// InvalidArgument for more than kMaxSvgPasses passes.
std::string draw_svg(const Timeline& timeline, const SvgOptions& options = {});

}  // namespace sluice
