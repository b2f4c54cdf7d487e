// Charts made of characters: every line has its own symbol, and dots connect its points.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/cli/chart.h"
#include "lockstep/cli/format.h"

namespace lockstep::cli {
namespace {

constexpr int kRows = 14;
constexpr int kLabelWidth = 10;
constexpr int kLeastColumns = 20;
constexpr int kSigns = 6;

// What a chart is drawn with.
struct Signs {
  const char* of[kSigns];  // each line has its own
  const char* between;     // two points
  const char* left;        // of the rows
  const char* corner;
  const char* below;
};
constexpr Signs kUtf8 = {{"•", "○", "+", "x", "*", "#"}, "·", "│", "└", "─"};
constexpr Signs kAscii = {{"*", "o", "+", "x", "@", "#"}, ".", "|", "+", "-"};

class CharacterPanel {
 public:
  CharacterPanel(const Panel& panel, int columns, const Signs& signs)
      : panel_(panel),
        signs_(signs),
        x_(x_axis(panel, std::max(2, columns / 12))),
        y_(y_axis(panel, 4)),
        columns_(columns),
        cells_(static_cast<std::size_t>(kRows * columns), " ") {}

  std::string text() {
    for (std::size_t i = 0; i < panel_.series.size(); ++i) {
      draw(panel_.series[i], signs_.of[i % kSigns]);
    }
    std::string out = panel_.title;
    std::size_t wide = display_width(out);
    for (std::size_t i = 0; i < panel_.series.size(); ++i) {
      const std::string key = fmt::format("{} {}", signs_.of[i % kSigns], panel_.series[i].name);
      // A key that the line has no room for begins another.
      const bool fits = wide + 3 + display_width(key) <= static_cast<std::size_t>(width());
      wide = fits ? wide + 3 + display_width(key) : 3 + display_width(key);
      out += (fits ? "   " : "\n   ") + key;
    }
    out += '\n';
    for (int row = 0; row < kRows; ++row) {
      out += fmt::format("{:>{}} {}", label_of(row), kLabelWidth - 2, signs_.left);
      std::string line;
      for (int column = 0; column < columns_; ++column) line += cell(column, row);
      out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
    return out + fmt::format("{:>{}} {}", "", kLabelWidth - 2, signs_.corner) + ruler() + '\n' +
           x_labels() + '\n';
  }

 private:
  std::string& cell(int column, int row) {
    return cells_[static_cast<std::size_t>(row * columns_ + column)];
  }
  int column_of(double x) const {
    return static_cast<int>(std::lround(x_.place(x) * (columns_ - 1)));
  }
  double height_of(double y) const { return (1.0 - y_.place(y)) * (kRows - 1); }

  void draw(const Series& series, const char* sign) {
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      const int column = column_of(series.x[i]);
      cell(column, static_cast<int>(std::lround(height_of(series.y[i])))) = sign;
      if (i == 0 || !std::isfinite(series.y[i - 1])) continue;
      const int before = column_of(series.x[i - 1]);
      for (int c = before + 1; c < column; ++c) {
        const double part = static_cast<double>(c - before) / (column - before);
        const double height =
            height_of(series.y[i - 1]) * (1 - part) + height_of(series.y[i]) * part;
        std::string& between = cell(c, static_cast<int>(std::lround(height)));
        if (between == " ") between = signs_.between;
      }
    }
  }

  std::string label_of(int row) const {
    for (const double tick : y_.ticks) {
      if (std::lround((1.0 - (tick - y_.low) / (y_.high - y_.low)) * (kRows - 1)) == row) {
        return tick_text(y_, tick);
      }
    }
    return "";
  }

  std::string ruler() const {
    std::string line;
    for (int i = 0; i < columns_; ++i) line += signs_.below;
    return line;
  }

  std::string x_labels() const {
    std::string line(static_cast<std::size_t>(kLabelWidth + columns_), ' ');
    std::size_t free = 0;
    for (const double tick : x_.ticks) {
      const std::string text = tick_text(x_, tick);
      const double place = (tick - x_.low) / (x_.high - x_.low) * (columns_ - 1);
      const auto at = static_cast<std::size_t>(kLabelWidth + std::lround(place));
      const std::size_t begin = std::min(at - std::min(at, text.size() / 2),
                                         line.size() - std::min(line.size(), text.size()));
      if (begin < free) continue;
      line.replace(begin, text.size(), text);
      free = begin + text.size() + 1;
    }
    line.resize(line.find_last_not_of(' ') + 1);
    if (line.size() + 2 + panel_.x_label.size() <= static_cast<std::size_t>(width())) {
      return line + "  " + panel_.x_label;
    }
    return fmt::format("{}\n{:>{}}", line, panel_.x_label, width());
  }

  int width() const { return kLabelWidth + columns_; }

  const Panel& panel_;
  const Signs& signs_;
  Axis x_;
  Axis y_;
  int columns_;
  std::vector<std::string> cells_;
};

}  // namespace

std::string terminal_chart(const std::vector<Panel>& panels, int width, bool utf8) {
  const int columns = std::max(kLeastColumns, width - kLabelWidth - 2);
  std::string out;
  for (const Panel& panel : panels) {
    if (!out.empty()) out += '\n';
    out += CharacterPanel(panel, columns, utf8 ? kUtf8 : kAscii).text();
  }
  return out;
}

}  // namespace lockstep::cli
