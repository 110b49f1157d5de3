// A plot of a few lines as an SVG file of its own: axes with ticks and labels, markers, error bars,
// a legend. Dark text on a white ground.
//
// Pure: text out of numbers.
// Thread: pure.
#pragma once

#include <string>
#include <vector>

namespace karez {

struct PlotPoint {
  double x = 0;
  double y = 0;
  double error = 0;  // half the length of the error bar; 0: none
};

struct PlotLine {
  std::string label;
  std::vector<PlotPoint> points;  // ascending x; points that are not finite are left out
};

struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // points with x <= 0 are left out
  // Where all y are above 0; else the axis is linear.
  bool prefer_log_y = false;
  std::vector<PlotLine> lines;
};

std::string to_svg(const LinePlot& plot);

// A few round numbers that span [low, high], ascending. log: powers of ten times 1, 2 and 5.
// Requires: low <= high, both finite; for log both above 0.
std::vector<double> axis_ticks(double low, double high, bool log);

}  // namespace karez
