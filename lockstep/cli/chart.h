// Charts of metrics over epochs or learning rates, independent of the canvas. A chart is a column
// of panels; every panel has lines.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

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

// The range of an axis and its ticks. On a logarithmic axis `low`, `high` and the ticks are
// exponents of 10.
struct Axis {
  double low = 0;
  double high = 1;
  std::vector<double> ticks;
  bool log = false;

  // 0 at `low`, 1 at `high`.
  double place(double value) const;
};
// An axis for all finite values; round ticks, about `count` of them.
Axis axis_for(const std::vector<double>& values, int count, bool log = false);
Axis x_axis(const Panel& panel, int count);
Axis y_axis(const Panel& panel, int count);
std::string tick_text(const Axis& axis, double tick);  // "0.25", "1e-04"

// Draws with characters, `width` columns at most.
std::string terminal_chart(const std::vector<Panel>& panels, int width);
// Writes a picture; the extension gives the format, .svg or .png. UsageError for other names,
// DataError if the file cannot be written.
void write_chart(const std::vector<Panel>& panels, const std::filesystem::path& file);

}  // namespace lockstep::cli
