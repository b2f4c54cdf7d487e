// Pictures of a page. A picture's SVG is stretched to the width that there is, while its labels are
// HTML on top of it and keep their size: so it is readable on a phone.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::page {

struct PlotLine {
  std::string name;
  std::string style;  // a class of the page's style sheet: "c1", "ideal"
  std::vector<double> x;
  std::vector<double> y;
  bool dots = false;
};

// The area between two lines.
struct PlotBand {
  std::vector<double> x;
  std::vector<double> low;
  std::vector<double> high;
};

struct Plot {
  std::string label;  // what a screen reader says
  std::string x_label;
  std::string y_label;
  std::vector<PlotLine> lines;
  std::optional<PlotBand> band = {};
  bool log_x = false;
  bool log_y = false;
  bool from_zero = false;            // y
  std::vector<double> x_ticks = {};  // empty: round ones
};

// The picture with its axes and legend.
std::string plot_html(const Plot& plot);

struct Key {
  std::string style;
  std::string name;
};
std::string legend_html(const std::vector<Key>& keys);

// A table that is folded away: the picture's numbers. Cells are text, not HTML.
std::string table_html(const std::string& summary, const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows);

// A part of the page: a heading, a sentence that says what the picture shows, and the picture.
std::string section_html(const std::string& id, const std::string& heading,
                         const std::string& sentence, const std::string& picture);

// Indices of at most `most` of `count` items, evenly spread, with the first and the last.
std::vector<std::size_t> spread_over(std::size_t count, std::size_t most);

}  // namespace lockstep::page
