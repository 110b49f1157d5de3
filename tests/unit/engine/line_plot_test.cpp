#include "engine/line_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace karez {
namespace line_plot_test {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// What is wrong with the nesting and quoting of an XML document; empty if nothing is.
std::string xml_fault(std::string_view xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < xml.size()) {
    if (xml[at] != '<') {
      if (xml[at] == '>' || (xml[at] == '&' && xml.find(';', at) > at + 6)) {
        return "a bare character at " + std::to_string(at);
      }
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    bool quoted = false;
    while (end < xml.size() && (quoted || xml[end] != '>')) {
      if (xml[end] == '<') {
        return "a tag in a tag at " + std::to_string(end);
      }
      quoted ^= xml[end] == '"';
      ++end;
    }
    if (end == xml.size()) {
      return "a tag without an end";
    }
    const std::string_view tag = xml.substr(at + 1, end - at - 1);
    std::size_t length = tag.starts_with('/') ? 1 : 0;
    while (length < tag.size() && std::isalpha(static_cast<unsigned char>(tag[length])) != 0) {
      ++length;
    }
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) {
        return "an end without a begin: " + std::string(tag);
      }
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.emplace_back(tag.substr(0, length));
    }
    at = end + 1;
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

LinePlot sample() {
  return {.title = "Loss & budget <all>",
          .x_label = "token budget",
          .y_label = "nats \"a\" token",
          .log_x = true,
          .prefer_log_y = true,
          .lines = {{"r2", {{512, 0.027, 0.01}, {1024, 0.0065, 0.02}, {2048, 0.0028}}},
                    {"minmax", {{512, 0.374}, {1024, 0.13}, {2048, 0.024}}}}};
}

TEST(LinePlot, SvgIsWellFormedAndHasEverything) {
  const std::string svg = to_svg(sample());
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(count_of(svg, "<circle"), 6);
  EXPECT_EQ(count_of(svg, "<path"), 2);
  EXPECT_THAT(svg, HasSubstr(">Loss &amp; budget &lt;all&gt;</text>"));
  EXPECT_THAT(svg, HasSubstr(">nats &quot;a&quot; token</text>"));
  for (const char* label : {">512<", ">1024<", ">2048<", ">r2<", ">minmax<", ">0.01<", ">0.1<"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
}

TEST(LinePlot, LossesBelowZeroMakeTheAxisLinear) {
  LinePlot plot = sample();
  plot.lines[0].points[2].y = -0.002;
  const std::string svg = to_svg(plot);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(count_of(svg, "<circle"), 6);
  EXPECT_THAT(svg, HasSubstr(">0<"));
}

TEST(LinePlot, PointsThatAreNotFiniteAreLeftOut) {
  LinePlot plot = sample();
  plot.lines[0].points[1].y = std::numeric_limits<double>::quiet_NaN();
  plot.lines[1].points[0].x = 0;  // on a logarithmic axis
  const std::string svg = to_svg(plot);
  EXPECT_EQ(count_of(svg, "<circle"), 4);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(LinePlot, NothingAndOnePointAreDrawnToo) {
  EXPECT_EQ(xml_fault(to_svg({})), "");
  LinePlot plot;
  plot.lines = {{"one", {{512, 0}}}, {"none", {}}};
  const std::string svg = to_svg(plot);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(count_of(svg, "<circle"), 1);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(LinePlot, TicksAreRoundAndSpanTheRange) {
  const auto near = [](double x) { return DoubleNear(x, 1e-9); };
  EXPECT_THAT(axis_ticks(0, 1, false),
              ElementsAre(near(0), near(0.2), near(0.4), near(0.6), near(0.8), near(1)));
  EXPECT_THAT(axis_ticks(-0.011, 0.374, false),
              ElementsAre(near(-0.1), near(0), near(0.1), near(0.2), near(0.3), near(0.4)));
  EXPECT_THAT(axis_ticks(0.003, 0.3, true),
              ElementsAre(near(0.002), near(0.005), near(0.01), near(0.02), near(0.05), near(0.1),
                          near(0.2), near(0.5)));
  EXPECT_THAT(axis_ticks(1, 10, true), ElementsAre(near(1), near(2), near(5), near(10)));
  EXPECT_GE(axis_ticks(5, 5, false).size(), 2U);
}

}  // namespace line_plot_test
}  // namespace karez
