// lockstep plot: draws the metrics of one or more runs over the epochs, in the terminal or as a
// picture.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/cli/chart.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/explain_charts.h"
#include "lockstep/cli/metrics_file.h"

namespace lockstep::cli {
namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::vector<std::string> metrics;
  std::string output;
  std::string json;
};

struct RunNumbers {
  std::string name;
  MetricsFile metrics;
};

RunNumbers read_run(const std::string& run) {
  std::filesystem::path file = run;
  if (std::filesystem::is_directory(file)) file /= kMetricsFile;
  require(std::filesystem::exists(file),
          "plot {}: there is no {}; name the folder of a run (lockstep train creates one in runs/)",
          run, file.string());
  std::filesystem::path folder = file.parent_path();
  std::error_code ignored;
  if (std::filesystem::is_symlink(folder, ignored)) {
    folder = std::filesystem::read_symlink(folder, ignored);
  }
  RunNumbers numbers{.name = folder.filename().string(), .metrics = parse_metrics_file(file)};
  if (numbers.metrics.of.empty()) {
    fail<DataError>("{} has no epoch yet; plot it after the first one", file.string());
  }
  return numbers;
}

bool is_shown_by_default(const std::string& column) {
  return is_learned(column) && !column.starts_with("val_");
}

// A panel per metric, with one line per run for the metric and one for its val_ counterpart.
std::vector<Panel> panels_of(const std::vector<RunNumbers>& runs,
                             const std::vector<std::string>& metrics) {
  std::vector<std::string> titles = metrics;
  if (titles.empty()) {
    for (const RunNumbers& run : runs) {
      for (const std::string& column : run.metrics.columns) {
        const bool known = std::ranges::find(titles, column) != titles.end();
        if (!known && is_shown_by_default(column)) titles.push_back(column);
      }
    }
  }
  std::vector<Panel> panels;
  for (const std::string& title : titles) {
    Panel panel{.title = title, .x_label = "epoch", .series = {}, .log_x = false};
    for (const RunNumbers& run : runs) {
      for (const std::string& column : {title, "val_" + title}) {
        const auto found = run.metrics.of.find(column);
        if (found == run.metrics.of.end()) continue;
        Series series{.name = runs.size() > 1 ? run.name + " " + column : column, .x = {}, .y = {}};
        for (const auto& [epoch, value] : found->second) {
          series.x.push_back(static_cast<double>(epoch));
          series.y.push_back(value);
        }
        panel.series.push_back(std::move(series));
      }
    }
    require(!panel.series.empty(), "--metric {}: the run only has {}", title,
            fmt::join(runs.front().metrics.columns, ", "));
    panels.push_back(std::move(panel));
  }
  return panels;
}

Json json_of(const PlotOptions& options, const std::vector<Panel>& panels) {
  Json series = Json::array();
  for (const Panel& panel : panels) {
    for (const Series& each : panel.series) {
      series.push_back({{"name", each.name}, {"epochs", each.x}, {"values", each.y}});
    }
  }
  return {{"runs", options.runs}, {"series", std::move(series)}, {"picture", options.output}};
}

void run(const PlotOptions& options) {
  check_target("--json", options.json);
  std::vector<RunNumbers> runs;
  for (const std::string& name : options.runs) runs.push_back(read_run(name));
  const std::vector<Panel> panels = panels_of(runs, options.metrics);
  if (!options.output.empty()) {
    write_chart(panels, options.output);
    if (!is_standard_output(options.json)) fmt::print("{}\n", options.output);
  } else if (!is_standard_output(options.json)) {
    const TerminalStyle style = style_of_output();
    fmt::print("{}", terminal_chart(panels, style.width, style.utf8));
  }
  write_json(json_of(options, panels), options.json);
}

}  // namespace

void add_plot(Program& program) {
  Command app =
      program.add_command("plot", "Draws loss and metrics of one or more runs over the epochs.");
  auto options = std::make_shared<PlotOptions>();
  app.add_option("run", options->runs, "a run's folder, or several to compare").required();
  app.add_option("--metric", options->metrics, "what to draw: loss,accuracy,lr,… (loss, metrics)")
      .delimiter(',');
  app.add_option("--output", options->output,
                 "write the chart to this .png or .svg file (drawn in the terminal)");
  app.add_option("--json", options->json, "write the numbers to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
