#include "engine/line_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

namespace karez {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 440;
constexpr double kLeft = 84;
constexpr double kRight = 696;
constexpr double kTop = 48;
constexpr double kBottom = 376;

// Told apart also by eyes that see few colours (Okabe and Ito).
constexpr std::array<std::string_view, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#000000"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // XML knows no control characters.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

// From values to pixels.
struct Axis {
  double low = 0;
  double high = 1;
  bool log = false;
  double first_pixel = 0;
  double last_pixel = 0;
  std::vector<double> ticks;

  double pixel(double value) const {
    const auto place = [&](double v) { return log ? std::log10(v) : v; };
    const double share =
        high > low ? (place(value) - place(low)) / (place(high) - place(low)) : 0.5;
    return first_pixel + std::clamp(share, -0.05, 1.05) * (last_pixel - first_pixel);
  }
};

bool is_drawn(const LinePlot& plot, const PlotPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!plot.log_x || point.x > 0);
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

Axis make_axis(Range range, bool log, double first_pixel, double last_pixel) {
  Axis axis;
  axis.log = log;
  axis.first_pixel = first_pixel;
  axis.last_pixel = last_pixel;
  if (range.empty()) {
    range = log ? Range{1, 10} : Range{0, 1};
  }
  axis.ticks = axis_ticks(range.low, range.high, log);
  axis.low = std::min(range.low, axis.ticks.front());
  axis.high = std::max(range.high, axis.ticks.back());
  return axis;
}

// The budgets of x are marked as they are: they are few.
Axis make_x_axis(const LinePlot& plot) {
  Range range;
  std::vector<double> values;
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& point : line.points) {
      if (is_drawn(plot, point)) {
        range.add(point.x);
        values.push_back(point.x);
      }
    }
  }
  Axis axis = make_axis(range, plot.log_x, kLeft + 24, kRight - 24);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  constexpr std::size_t kFew = 8;
  if (!values.empty() && values.size() <= kFew) {
    axis.ticks = values;
    axis.low = values.front();
    axis.high = values.back();
  }
  return axis;
}

Axis make_y_axis(const LinePlot& plot) {
  Range range;
  Range with_errors;
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& point : line.points) {
      if (is_drawn(plot, point)) {
        range.add(point.y);
        with_errors.add(point.y - point.error);
        with_errors.add(point.y + point.error);
      }
    }
  }
  const bool log = plot.prefer_log_y && !range.empty() && range.low > 0;
  if (!log && !range.empty()) {
    with_errors.add(0);
  }
  return make_axis(log ? range : with_errors, log, kBottom, kTop);
}

class SvgWriter {
 public:
  explicit SvgWriter(const LinePlot& plot)
      : plot_(plot), x_(make_x_axis(plot)), y_(make_y_axis(plot)) {}

  std::string write() {
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
        R"(font-family="sans-serif" font-size="13" fill="#222">)"
        "\n",
        kWidth, kHeight);
    add("<title>{}</title>\n", escaped(plot_.title));
    add("<rect width=\"{}\" height=\"{}\" fill=\"#fff\"/>\n", kWidth, kHeight);
    text(kWidth / 2, 26, "middle", plot_.title, " font-size=\"16\"");
    axes();
    for (std::size_t i = 0; i < plot_.lines.size(); ++i) {
      line(plot_.lines[i], kColours[i % kColours.size()]);
    }
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Arguments>(arguments)...);
  }

  void text(double x, double y, std::string_view anchor, std::string_view words,
            std::string_view attributes = "") {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor,
        attributes, escaped(words));
  }

  void stroke(double x1, double y1, double x2, double y2, std::string_view colour,
              double width = 1) {
    add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{}\"/>\n",
        x1, y1, x2, y2, colour, width);
  }

  void axes() {
    for (const double tick : y_.ticks) {
      const double y = y_.pixel(tick);
      stroke(kLeft, y, kRight, y, "#ddd");
      text(kLeft - 8, y + 4, "end", fmt::format("{:.6g}", tick));
    }
    for (const double tick : x_.ticks) {
      const double x = x_.pixel(tick);
      stroke(x, kBottom, x, kBottom + 5, "#444");
      text(x, kBottom + 20, "middle", fmt::format("{:.6g}", tick));
    }
    stroke(kLeft, kTop, kLeft, kBottom, "#444");
    stroke(kLeft, kBottom, kRight, kBottom, "#444");
    text((kLeft + kRight) / 2, kBottom + 44, "middle", plot_.x_label);
    const double middle = (kTop + kBottom) / 2;
    text(20, middle, "middle", plot_.y_label,
         fmt::format(" transform=\"rotate(-90 20 {:.1f})\"", middle));
  }

  void line(const PlotLine& line, std::string_view colour) {
    std::string path;
    for (const PlotPoint& point : line.points) {
      if (!is_drawn(plot_, point)) {
        continue;
      }
      const double x = x_.pixel(point.x);
      const double y = y_.pixel(point.y);
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x, y);
      if (point.error > 0) {
        const double low = point.y - point.error;
        stroke(x, !y_.log || low > 0 ? y_.pixel(low) : kBottom, x, y_.pixel(point.y + point.error),
               colour);
      }
      add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x, y, colour);
    }
    if (!path.empty()) {
      add("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, colour);
    }
  }

  void legend() {
    double y = kTop + 16;
    for (std::size_t i = 0; i < plot_.lines.size(); ++i) {
      stroke(kRight - 24, y - 4, kRight, y - 4, kColours[i % kColours.size()], 3);
      text(kRight - 32, y, "end", plot_.lines[i].label);
      y += 20;
    }
  }

  const LinePlot& plot_;
  Axis x_;
  Axis y_;
  std::string out_;
};

}  // namespace

std::string to_svg(const LinePlot& plot) { return SvgWriter(plot).write(); }

std::vector<double> axis_ticks(double low, double high, bool log) {
  std::vector<double> ticks;
  constexpr double kSlack = 1e-9;
  if (log) {
    for (double power = std::floor(std::log10(low));
         ticks.empty() || ticks.back() < high * (1 - kSlack); ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10, power);
        const bool next_is_low = tick * (factor == 2.0 ? 2.5 : 2.0) <= low * (1 + kSlack);
        if (!next_is_low && (ticks.empty() || ticks.back() < high * (1 - kSlack))) {
          ticks.push_back(tick);
        }
      }
    }
    return ticks;
  }
  // At most seven steps of 1, 2 or 5 times a power of ten.
  constexpr double kMostSteps = 7;
  const double span = high > low ? high - low : std::max(std::abs(high), 1.0);
  double step = std::pow(10, std::floor(std::log10(span / kMostSteps)));
  for (const double factor : {2.0, 2.5, 2.0}) {
    if (span / step > kMostSteps) {
      step *= factor;
    }
  }
  const double first = std::floor(low / step + kSlack);
  const double last = std::max(first + 1, std::ceil(high / step - kSlack));
  for (double i = first; i <= last; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

}  // namespace karez
