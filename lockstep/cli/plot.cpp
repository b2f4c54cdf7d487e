// lockstep plot: draws the metrics of one or more runs over the epochs, in the terminal or as a
// picture.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/cli/chart.h"
#include "lockstep/cli/command.h"

namespace lockstep::cli {
namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::vector<std::string> metrics;
  std::string output;
  std::string json;
};

// The contents of metrics.csv: values by name and epoch. If a resumed run repeated an epoch, the
// last values count.
struct RunNumbers {
  std::string name;
  std::vector<std::string> columns;                          // in the file's order
  std::map<std::string, std::map<std::int64_t, double>> of;  // column → epoch (from 1) → value
};

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  return cells;
}

// Nothing if the cell is empty or not a number.
std::optional<double> number_in(const std::string& cell) {
  if (cell == "nan" || cell == "-nan") return std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size()) return std::nullopt;
  return value;
}

RunNumbers read_run(const std::string& run) {
  std::filesystem::path file = run;
  if (std::filesystem::is_directory(file)) file /= "metrics.csv";
  std::ifstream stream(file);
  if (!stream) {
    fail<UsageError>(
        "plot {}: there is no {}; name the folder of a run (lockstep train creates one "
        "in runs/)",
        run, file.string());
  }
  std::filesystem::path folder = file.parent_path();
  std::error_code ignored;
  if (std::filesystem::is_symlink(folder, ignored)) {
    folder = std::filesystem::read_symlink(folder, ignored);
  }
  RunNumbers numbers{.name = folder.filename().string(), .columns = {}, .of = {}};
  std::string line;
  std::getline(stream, line);
  const std::vector<std::string> names = cells_of(line);
  if (names.empty() || names.front() != "epoch") {
    fail<DataError>("{} does not begin with the names of the columns (epoch,…)", file.string());
  }
  numbers.columns.assign(names.begin() + 1, names.end());
  for (std::int64_t row = 2; std::getline(stream, line); ++row) {
    const std::vector<std::string> cells = cells_of(line);
    const auto epoch = cells.empty() ? std::nullopt : number_in(cells.front());
    if (!epoch || cells.size() > names.size()) {
      fail<DataError>("{}, line {}: this is not a row of {} numbers", file.string(), row,
                      names.size());
    }
    for (std::size_t i = 1; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      const auto value = number_in(cells[i]);
      if (!value) {
        fail<DataError>("{}, line {}: '{}' is not a number", file.string(), row, cells[i]);
      }
      numbers.of[names[i]][static_cast<std::int64_t>(*epoch) + 1] = *value;
    }
  }
  if (numbers.of.empty()) {
    fail<DataError>("{} has no epoch yet; plot it after the first one", file.string());
  }
  return numbers;
}

bool is_shown_by_default(const std::string& column) {
  return column != "seconds" && column != "samples_per_s" && column != "lr" &&
         !column.starts_with("val_");
}

// A panel per metric, with one line per run for the metric and one for its val_ counterpart.
std::vector<Panel> panels_of(const std::vector<RunNumbers>& runs,
                             const std::vector<std::string>& metrics) {
  std::vector<std::string> titles = metrics;
  if (titles.empty()) {
    for (const RunNumbers& run : runs) {
      for (const std::string& column : run.columns) {
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
        const auto found = run.of.find(column);
        if (found == run.of.end()) continue;
        Series series{.name = runs.size() > 1 ? run.name + " " + column : column, .x = {}, .y = {}};
        for (const auto& [epoch, value] : found->second) {
          series.x.push_back(static_cast<double>(epoch));
          series.y.push_back(value);
        }
        panel.series.push_back(std::move(series));
      }
    }
    require(!panel.series.empty(), "--metric {}: the run only has {}", title,
            fmt::join(runs.front().columns, ", "));
    panels.push_back(std::move(panel));
  }
  return panels;
}

int terminal_width() {
  constexpr int kElse = 80;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kElse;
  return std::min<int>(size.ws_col, 120);
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
    fmt::print("{}", terminal_chart(panels, terminal_width()));
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
