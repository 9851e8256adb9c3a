#include "sluice/trace/svg.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/trace/svg_impl.h"
#include "sluice/trace/timelines_for_tests.h"

namespace sluice {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// Whether every tag is closed in order and no bare '<' or '&' stands in between.
bool is_well_formed(const std::string& xml) {
  const std::regex tag(R"(<(/?)([a-z]+)((?: [a-zA-Z0-9-]+="[^"<]*")*)(/?)>)");
  std::vector<std::string> open;
  auto at = xml.cbegin();
  std::smatch match;
  while (std::regex_search(at, xml.cend(), match, tag)) {
    const std::string between(at, match[0].first);
    if (between.find('<') != std::string::npos) return false;
    if (std::regex_search(between, std::regex("&(?!(amp|lt|gt|quot|apos);)"))) return false;
    if (match[1].length() > 0) {
      if (open.empty() || open.back() != match[2]) return false;
      open.pop_back();
    } else if (match[4].length() == 0) {
      open.push_back(match[2]);
    }
    at = match[0].second;
  }
  return open.empty() && std::string(at, xml.cend()) == "\n";
}

SvgOptions in_units_of_one() {
  SvgOptions options;
  options.axis = TimeAxis{1.0, ""};
  return options;
}

TEST(Svg, IsOneWellFormedElement) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "gis"}) {
    const std::string svg = draw_svg(unit_timeline(name, 4, 8), in_units_of_one());
    EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0U);
    EXPECT_TRUE(is_well_formed(svg)) << name;
  }
  EXPECT_TRUE(is_well_formed(draw_svg(timeline_with_messages())));
  EXPECT_TRUE(is_well_formed(draw_svg(Timeline())));
}

TEST(Svg, RefersToNoOtherFile) {
  const std::string svg = draw_svg(unit_timeline("gis", 4, 8), in_units_of_one());
  for (const char* link : {"href", "url(", "@import", "<script", "<image"}) {
    EXPECT_EQ(count(svg, link), 0U) << link;
  }
}

TEST(Svg, DrawsEveryPassOnceWithItsMicrobatchAndTimes) {
  const std::string svg = draw_svg(unit_timeline("1f1b", 4, 8), in_units_of_one());
  EXPECT_EQ(count(svg, "<rect class=\"F0\""), 32U);
  EXPECT_EQ(count(svg, "<rect class=\"B0\""), 32U);
  EXPECT_EQ(count(svg, ">7</text>"), 8U);
  EXPECT_EQ(count(svg, "<title>0B7: 31 to 33</title>"), 1U);
}

TEST(Svg, ShadesChunks) {
  const std::string svg = draw_svg(unit_timeline("interleaved", 2, 2, 3), in_units_of_one());
  for (const char* kind : {"F0", "F1", "F2", "B0", "B1", "B2"}) {
    EXPECT_EQ(count(svg, std::string("<rect class=\"") + kind + "\""), 4U) << kind;
    EXPECT_EQ(count(svg, std::string(".") + kind + " { fill: #"), 1U) << kind;
  }
}

TEST(Svg, PutsTheBubbleIntoTheCaption) {
  SvgOptions options = in_units_of_one();
  options.caption = "4 ranks";
  BubbleReport bubble;
  bubble.makespan = 33;
  bubble.bubble_fraction = 0.27272;
  bubble.span_bubble_fraction = 0.125;
  options.bubble = bubble;
  const std::string svg = draw_svg(unit_timeline("1f1b", 4, 8), options);
  EXPECT_EQ(count(svg, "4 ranks"), 1U);
  EXPECT_EQ(count(svg, "makespan 33, bubble 27.3 %"), 1U);
  EXPECT_EQ(count(svg, "12.5 %"), 1U);
}

TEST(Svg, EscapesText) {
  SvgOptions options = in_units_of_one();
  options.title = "<b> & \"c\" 'd'\x01";
  options.axis->unit = "<u>";
  const std::string svg = draw_svg(unit_timeline("1f1b", 1, 1), options);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_GE(count(svg, "&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;"), 2U);
  EXPECT_EQ(count(svg, "<b>") + count(svg, "<u>") + count(svg, "\x01"), 0U);
}

TEST(Svg, ShowsPeaksOfSavedActivationsInMicrobatchesOfTheModel) {
  const std::string svg = draw_svg(unit_timeline("1f1b", 4, 8), in_units_of_one());
  for (const char* peak : {">1</text>", ">0.75</text>", ">0.5</text>", ">0.25</text>"}) {
    EXPECT_GE(count(svg, peak), 1U) << peak;
  }
  EXPECT_EQ(count(svg, "<path "), 4U);
}

TEST(Svg, StacksAMemoryCurveByClass) {
  MemoryCurve curve;
  curve.ranks.resize(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    MemorySample sample;
    sample.bytes[static_cast<std::size_t>(MemoryClass::kWeights)] = 3 << 20;
    curve.ranks[rank].push_back(sample);
    sample.time = 4000;
    sample.bytes[static_cast<std::size_t>(MemoryClass::kActivations)] = 1 << 20;
    curve.ranks[rank].push_back(sample);
  }
  SvgOptions options;
  options.memory = &curve;
  const std::string svg = draw_svg(timeline_with_messages(), options);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count(svg, "<path "), 4U);
  EXPECT_EQ(count(svg, ">4 MiB</text>"), 2U);
  EXPECT_EQ(count(svg, ">weights</text>"), 1U);
  EXPECT_EQ(count(svg, ">gradients</text>"), 0U);
}

TEST(Svg, RefusesMorePassesThanAPictureHolds) {
  Timeline timeline;
  timeline.ranks.resize(1);
  for (int i = 0; i <= kMaxSvgPasses; ++i) {
    timeline.ranks[0].push_back(pass_span(PassKind::kForward, 0, i, i, i + 1));
  }
  EXPECT_THROW(draw_svg(timeline), InvalidArgument);
  timeline.ranks[0].pop_back();
  EXPECT_NO_THROW(draw_svg(timeline));
}

TEST(SvgColours, MixWithWhite) {
  EXPECT_EQ(svg::lighten("#102030", 0.0), "#102030");
  EXPECT_EQ(svg::lighten("#102030", 1.0), "#ffffff");
  EXPECT_EQ(svg::lighten("#000000", 0.5), "#808080");
  EXPECT_TRUE(svg::is_dark("#3a6db5"));
  EXPECT_FALSE(svg::is_dark("#e39a3b"));
}

}  // namespace
}  // namespace sluice
