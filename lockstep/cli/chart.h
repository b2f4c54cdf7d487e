// Charts of metrics over epochs or learning rates, independent of the canvas. A chart is a column
// of panels; every panel has lines.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/explain/axis.h"

namespace lockstep::cli {

// One line. A value that is not a finite number is a gap.
struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
};

struct Panel {
  std::string title;
  std::string x_label = "epoch";
  std::vector<Series> series;
  bool log_x = false;
};

using Axis = ChartAxis;
Axis x_axis(const Panel& panel, int count);
Axis y_axis(const Panel& panel, int count);

// Draws with characters, `width` columns at most; without `utf8`, with ASCII's.
std::string terminal_chart(const std::vector<Panel>& panels, int width, bool utf8 = true);
// Writes a picture; the extension gives the format, .svg or .png. UsageError for other names,
// DataError if the file cannot be written.
void write_chart(const std::vector<Panel>& panels, const std::filesystem::path& file);

}  // namespace lockstep::cli
