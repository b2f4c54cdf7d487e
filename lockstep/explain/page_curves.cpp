// Lines: speed-up over replicas, loss and metrics, and the gradient noise scale.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "lockstep/explain/page_parts.h"
#include "lockstep/explain/page_plot.h"
#include "lockstep/explain/page_text.h"

namespace lockstep::page {
namespace {

constexpr std::size_t kMostTableRows = 60;
constexpr std::size_t kStyles = 6;  // c0 … c5

std::string optional_times(const std::optional<double>& times) {
  return times ? times_text(*times) : "–";
}

// ", measured 3.2× (80.0%)"
std::string reached(const char* how, const std::optional<double>& times, int replicas) {
  if (!times) return "";
  return fmt::format(", {} {} ({})", how, times_text(*times), percent_text(*times / replicas));
}

std::string sentence_of(const Chart& chart) {
  std::string sentence;
  for (const Curve& curve : chart.curves) {
    double first = NAN;
    double last = NAN;
    double least = INFINITY;
    double most = -INFINITY;
    for (const double value : curve.y) {
      if (!std::isfinite(value)) continue;
      if (std::isnan(first)) first = value;
      last = value;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    if (std::isnan(first)) continue;
    sentence += fmt::format("{}{} went from {} to {} (between {} and {})",
                            sentence.empty() ? "" : "; ", curve.name, short_text(first),
                            short_text(last), short_text(least), short_text(most));
  }
  return sentence.empty() ? "No value yet." : sentence + ".";
}

std::string table_of(const Chart& chart) {
  std::vector<std::string> head = {chart.x_label};
  for (const Curve& curve : chart.curves) head.push_back(curve.name);
  std::vector<double> x;
  for (const Curve& curve : chart.curves) x.insert(x.end(), curve.x.begin(), curve.x.end());
  std::ranges::sort(x);
  x.erase(std::unique(x.begin(), x.end()), x.end());
  std::vector<std::vector<std::string>> rows;
  for (const std::size_t i : spread_over(x.size(), kMostTableRows)) {
    std::vector<std::string> row = {short_text(x[i])};
    for (const Curve& curve : chart.curves) {
      const auto found = std::ranges::find(curve.x, x[i]);
      row.push_back(found == curve.x.end()
                        ? "–"
                        : short_text(curve.y[static_cast<std::size_t>(found - curve.x.begin())]));
    }
    rows.push_back(std::move(row));
  }
  return table_html("The numbers", head, rows);
}

}  // namespace

std::string speed_up_html(const std::vector<SpeedUp>& given, const std::string& note) {
  std::vector<SpeedUp> points = given;
  std::ranges::stable_sort(points, {}, &SpeedUp::replicas);
  std::vector<std::vector<std::string>> rows;
  PlotLine ideal{.name = "ideal", .style = "ideal", .x = {}, .y = {}};
  PlotLine predicted{.name = "predicted", .style = "c1 dash", .x = {}, .y = {}, .dots = true};
  PlotLine measured{.name = "measured", .style = "c0", .x = {}, .y = {}, .dots = true};
  std::vector<double> ticks;
  for (const SpeedUp& point : points) {
    const double replicas = point.replicas;
    ticks.push_back(replicas);
    ideal.x.push_back(replicas);
    ideal.y.push_back(replicas);
    const auto add = [&](PlotLine& line, const std::optional<double>& times) {
      if (!times) return;
      line.x.push_back(replicas);
      line.y.push_back(*times);
    };
    add(measured, point.measured);
    add(predicted, point.predicted);
    rows.push_back({std::to_string(point.replicas), times_text(replicas),
                    optional_times(point.measured), optional_times(point.predicted)});
  }
  const bool wide = points.back().replicas > 16 * points.front().replicas;
  Plot plot{.label = "speed-up over the number of replicas",
            .x_label = "replicas",
            .y_label = "times as fast as one",
            .lines = {ideal},
            .log_x = wide,
            .log_y = wide,
            .from_zero = !wide,
            .x_ticks = ticks};
  if (!predicted.x.empty()) plot.lines.push_back(predicted);
  if (!measured.x.empty()) plot.lines.push_back(measured);
  std::string sentence = "How many times as fast as one replica so many would be, by their steps.";
  for (const SpeedUp& point : points) {
    if (!point.measured && &point != &points.back()) continue;
    sentence += fmt::format(" On {} replica{}: ideal {}{}{}.", point.replicas,
                            point.replicas == 1 ? "" : "s", times_text(point.replicas),
                            reached("measured", point.measured, point.replicas),
                            reached("predicted", point.predicted, point.replicas));
  }
  if (!note.empty()) sentence += " " + note;
  return section_html(
      "speed-up", "Speed-up", sentence,
      plot_html(plot) +
          table_html("The numbers", {"replicas", "ideal", "measured", "predicted"}, rows));
}

std::string outlook_html(const LossOutlook& outlook) {
  PlotLine sooner{.name = "sooner", .style = "c0", .x = {}, .y = {}, .dots = true};
  PlotLine faster{.name = "samples per second", .style = "c1 dash", .x = {}, .y = {}, .dots = true};
  PlotBand band;
  std::vector<std::vector<std::string>> rows;
  std::vector<double> ticks;
  const bool rates = !outlook.rates.empty() && outlook.rates.front() > 0;
  for (std::size_t i = 0; i < outlook.points.size(); ++i) {
    const TimeToLoss& point = outlook.points[i];
    const double devices = point.at.devices;
    ticks.push_back(devices);
    sooner.x.push_back(devices);
    sooner.y.push_back(point.sooner);
    faster.x.push_back(devices);
    faster.y.push_back(point.faster);
    band.x.push_back(devices);
    band.low.push_back(point.sooner_low);
    band.high.push_back(point.sooner_high);
    rows.push_back({std::to_string(point.at.devices), short_text(point.at.batch),
                    times_text(point.faster), times_text(point.steps), times_text(point.sooner),
                    times_text(point.sooner_low) + " to " + times_text(point.sooner_high),
                    rates ? short_text(outlook.rates[i]) : "–"});
  }
  const bool wide = outlook.points.back().at.devices > 16 * outlook.points.front().at.devices;
  const Plot plot{.label = "how much sooner a loss is reached, over the number of devices",
                  .x_label = "devices",
                  .y_label = "times as soon as on one",
                  .lines = {sooner, faster},
                  .band = band,
                  .log_x = wide,
                  .log_y = wide,
                  .from_zero = !wide,
                  .x_ticks = ticks};
  std::string sentence =
      "More devices have larger batches, which need fewer steps, but not as many times fewer: so a "
      "loss is reached sooner by less than the samples per second grow. The band is what the noise "
      "scale leaves open.";
  if (std::string largest = lockstep::sentence_of(outlook); !largest.empty()) {
    largest[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(largest[0])));
    sentence += " " + largest + ".";
  }
  return section_html("sooner", "How much sooner a loss is reached", sentence,
                      plot_html(plot) + table_html("The numbers",
                                                   {"devices", "batch", "samples/s", "steps",
                                                    "sooner", "likely", "learning rate"},
                                                   rows));
}

std::string charts_html(const std::vector<Chart>& charts) {
  std::string out;
  for (std::size_t c = 0; c < charts.size(); ++c) {
    const Chart& chart = charts[c];
    Plot plot{.label = chart.title + " over " + chart.x_label,
              .x_label = chart.x_label,
              .y_label = chart.title,
              .lines = {}};
    for (std::size_t i = 0; i < chart.curves.size(); ++i) {
      const Curve& curve = chart.curves[i];
      const std::size_t count = std::min(curve.x.size(), curve.y.size());
      const auto end = static_cast<std::ptrdiff_t>(count);
      plot.lines.push_back({.name = curve.name,
                            .style = fmt::format("c{}{}", i % kStyles, i % 2 == 1 ? " dash" : ""),
                            .x = {curve.x.begin(), curve.x.begin() + end},
                            .y = {curve.y.begin(), curve.y.begin() + end},
                            .dots = count <= 40});
    }
    out += section_html(fmt::format("chart-{}", c + 1), chart.title, sentence_of(chart),
                        plot_html(plot) + table_of(chart));
  }
  return out;
}

std::string noise_html(const std::vector<NoisePoint>& points, double global_batch) {
  PlotLine line{
      .name = "noise scale", .style = "c0", .x = {}, .y = {}, .dots = points.size() <= 40};
  PlotBand band;
  std::vector<std::vector<std::string>> rows;
  bool positive = true;
  for (const NoisePoint& point : points) {
    line.x.push_back(point.step);
    line.y.push_back(point.samples);
    band.x.push_back(point.step);
    band.low.push_back(point.low);
    band.high.push_back(point.high);
    positive = positive && point.low > 0;
  }
  for (const std::size_t i : spread_over(points.size(), kMostTableRows)) {
    const NoisePoint& point = points[i];
    rows.push_back({short_text(point.step), short_text(point.samples), short_text(point.low),
                    short_text(point.high)});
  }
  Plot plot{.label = "gradient noise scale over steps, with its interval",
            .x_label = "step",
            .y_label = "samples",
            .lines = {line},
            .band = band,
            .log_y = positive};
  const NoisePoint& last = points.back();
  std::string sentence =
      fmt::format("The gradient noise scale is {} samples, likely {} to {}.",
                  short_text(last.samples), short_text(last.low), short_text(last.high));
  if (global_batch > 0) {
    plot.lines.push_back({.name = "global batch",
                          .style = "ideal",
                          .x = {points.front().step, last.step},
                          .y = {global_batch, global_batch}});
    sentence += fmt::format(" The batch is {}: {}.", short_text(global_batch),
                            global_batch < last.low ? "a larger one still pays"
                            : global_batch > last.high
                                ? "a larger one costs samples without saving many steps"
                                : "about as large as pays");
  }
  return section_html(
      "noise", "Gradient noise scale", sentence,
      plot_html(plot) + table_html("The numbers", {"step", "samples", "low", "high"}, rows));
}

}  // namespace lockstep::page
