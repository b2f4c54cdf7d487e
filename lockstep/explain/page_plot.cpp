#include "lockstep/explain/page_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/explain/axis.h"
#include "lockstep/explain/page_text.h"

namespace lockstep::page {
namespace {

// SVG coordinates of a plot are 0 … 1000 both ways.
constexpr double kSize = 1000;
// A line of more points is thinned out: no screen shows more.
constexpr std::size_t kMostPoints = 800;

// Of the points of each bin the first, the lowest, the highest and the last, so that no peak is
// lost.
std::vector<std::size_t> thinned(const std::vector<double>& y) {
  std::vector<std::size_t> kept;
  const std::size_t bins = kMostPoints / 4;
  if (y.size() <= kMostPoints) {
    for (std::size_t i = 0; i < y.size(); ++i) kept.push_back(i);
    return kept;
  }
  for (std::size_t bin = 0; bin < bins; ++bin) {
    const std::size_t begin = bin * y.size() / bins;
    const std::size_t end = (bin + 1) * y.size() / bins;
    std::size_t least = begin;
    std::size_t most = begin;
    for (std::size_t i = begin; i < end; ++i) {
      if (y[i] < y[least] || !std::isfinite(y[least])) least = i;
      if (y[i] > y[most] || !std::isfinite(y[most])) most = i;
    }
    std::size_t of_bin[] = {begin, least, most, end - 1};
    std::ranges::sort(of_bin);
    for (const std::size_t i : of_bin) {
      if (kept.empty() || kept.back() != i) kept.push_back(i);
    }
  }
  return kept;
}

class PlotWriter {
 public:
  explicit PlotWriter(const Plot& plot) : plot_(plot), x_(x_axis()), y_(y_axis()) {}

  std::string html() const {
    std::string out = fmt::format(
        "<div class=\"plot\"><span class=\"yl\">{}</span>"
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 1000 1000\" "
        "preserveAspectRatio=\"none\">",
        escaped(plot_.y_label), escaped(plot_.label));
    for (const double tick : y_.ticks) {
      const double y = kSize * (1 - y_.place_of_tick(tick));
      out += fmt::format("<path class=\"grid\" d=\"M0 {:.0f}H1000\"/>", y);
    }
    if (plot_.band) out += band(*plot_.band);
    for (const PlotLine& line : plot_.lines) out += path(line);
    out += "</svg>" + labels() + "</div>";
    out += fmt::format("<p class=\"xl\">{}</p>", escaped(plot_.x_label));
    std::vector<Key> keys;
    for (const PlotLine& line : plot_.lines) keys.push_back({line.style, line.name});
    return out + legend_html(keys);
  }

 private:
  ChartAxis x_axis() const {
    std::vector<double> all = plot_.x_ticks;
    for (const PlotLine& line : plot_.lines) all.insert(all.end(), line.x.begin(), line.x.end());
    return axis_for(all, 5, plot_.log_x);
  }
  ChartAxis y_axis() const {
    std::vector<double> all;
    if (plot_.from_zero) all.push_back(0);
    for (const PlotLine& line : plot_.lines) all.insert(all.end(), line.y.begin(), line.y.end());
    if (plot_.band) {
      all.insert(all.end(), plot_.band->low.begin(), plot_.band->low.end());
      all.insert(all.end(), plot_.band->high.begin(), plot_.band->high.end());
    }
    return axis_for(all, 5, plot_.log_y);
  }

  // "12 340"; empty if the point has no place.
  std::string at(double x, double y) const {
    const double across = kSize * x_.place(x);
    const double down = kSize * (1 - y_.place(y));
    if (!std::isfinite(across) || !std::isfinite(down)) return "";
    return fmt::format("{:.0f} {:.0f}", across, down);
  }

  std::string path(const PlotLine& line) const {
    std::string d;
    std::string dots;
    bool gap = true;
    for (const std::size_t i : thinned(line.y)) {
      const std::string point = at(line.x[i], line.y[i]);
      if (!point.empty()) {
        d += (gap ? "M" : "L") + point;
        dots += "M" + point + "h0";  // a dot: a line of no length with a round end
      }
      gap = point.empty();
    }
    std::string out = fmt::format("<path class=\"line {}\" d=\"{}\"><title>{}</title></path>",
                                  line.style, d, escaped(line.name));
    if (line.dots) out += fmt::format("<path class=\"dot {}\" d=\"{}\"/>", line.style, dots);
    return out;
  }

  std::string band(const PlotBand& band) const {
    std::string there;
    std::string back;
    for (std::size_t i = 0; i < band.x.size(); ++i) {
      const std::string low = at(band.x[i], band.low[i]);
      const std::string high = at(band.x[i], band.high[i]);
      if (low.empty() || high.empty()) continue;
      there += (there.empty() ? "M" : "L") + high;
      back = "L" + low + back;
    }
    return there.empty() ? "" : fmt::format("<path class=\"band\" d=\"{}{}Z\"/>", there, back);
  }

  std::string labels() const {
    std::string out;
    for (const double tick : y_.ticks) {
      out += fmt::format("<span class=\"yt\" style=\"top:{:.1f}%\">{}</span>",
                         100 * (1 - y_.place_of_tick(tick)), tick_text(y_, tick));
    }
    double last = -std::numeric_limits<double>::infinity();
    const auto add = [&](double place, const std::string& text) {
      if (place < last + 9) return;  // it would touch the one before
      last = place;
      out += fmt::format("<span class=\"xt\" style=\"left:{:.1f}%\">{}</span>", place, text);
    };
    for (const double tick : plot_.x_ticks) add(100 * x_.place(tick), short_text(tick));
    if (!plot_.x_ticks.empty()) return out;
    for (const double tick : x_.ticks) add(100 * x_.place_of_tick(tick), tick_text(x_, tick));
    return out;
  }

  const Plot& plot_;
  ChartAxis x_;
  ChartAxis y_;
};

}  // namespace

std::string plot_html(const Plot& plot) {
  return PlotWriter(plot).html();
}

std::string legend_html(const std::vector<Key>& keys) {
  std::string out = "<ul class=\"legend\">";
  for (const Key& key : keys) {
    out += fmt::format("<li><i class=\"{}\"></i>{}</li>", key.style, escaped(key.name));
  }
  return out + "</ul>";
}

std::string table_html(const std::string& summary, const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string out =
      fmt::format("<details><summary>{}</summary><div class=\"wide\"><table><tr>", summary);
  for (const std::string& cell : head) {
    out += fmt::format("<th scope=\"col\">{}</th>", escaped(cell));
  }
  for (const std::vector<std::string>& row : rows) {
    out += "</tr>\n<tr>";
    for (const std::string& cell : row) out += fmt::format("<td>{}</td>", escaped(cell));
  }
  return out + "</tr></table></div></details>";
}

std::string section_html(const std::string& id, const std::string& heading,
                         const std::string& sentence, const std::string& picture) {
  return fmt::format(
      "<section id=\"{0}\"><h2>{1}</h2><figure aria-describedby=\"{0}-text\">{3}"
      "<figcaption id=\"{0}-text\">{2}</figcaption></figure></section>\n",
      id, escaped(heading), escaped(sentence), picture);
}

std::vector<std::size_t> spread_over(std::size_t count, std::size_t most) {
  std::vector<std::size_t> indices;
  const std::size_t taken = std::min(count, most);
  for (std::size_t i = 0; i < taken; ++i) {
    indices.push_back(taken == 1 ? 0 : i * (count - 1) / (taken - 1));
  }
  return indices;
}

}  // namespace lockstep::page
