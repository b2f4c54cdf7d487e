// lockstep explain: why a run on N devices was not N times as fast, and what would change that. It
// reads what the run recorded in its folder.
#include <fmt/core.h>

#include <algorithm>

#include "lockstep/cli/command.h"
#include "lockstep/cli/explain_charts.h"
#include "lockstep/cli/explained_run.h"
#include "lockstep/cli/explanation_json.h"
#include "lockstep/cli/metrics_file.h"
#include "lockstep/cli/output.h"
#include "lockstep/explain/explanation_text.h"
#include "lockstep/explain/page_of_run.h"

namespace lockstep::cli {
namespace {

struct ExplainOptions {
  std::string run;
  std::string html;
  std::string trace;
  std::string json;
  bool no_measure = false;
  bool no_charts = false;
};

// "critical path of a step: cpu:1 compute 78%, cpu:0 communication 12%".
std::string critical_text(const ExplainedRun& explained) {
  constexpr double kWorthNaming = 0.02;
  std::string text;
  for (const CriticalShare& share : explained.critical) {
    if (share.seconds < kWorthNaming) break;
    text += fmt::format("{}{} {} {:.0f}%", text.empty() ? "critical path of a step: " : ", ",
                        share.track, name_of(share.kind), 100 * share.seconds);
  }
  return text.empty() ? "" : text + "\n";
}

// Losses and metrics of the epochs, after those of the steps.
void add_epochs(PageContents& contents, const std::filesystem::path& run) {
  const std::optional<MetricsFile> metrics = read_metrics_file(run);
  if (!metrics) return;
  for (const std::string& column : metrics->columns) {
    if (!is_learned(column) || column.starts_with("val_")) continue;
    page::Chart chart{.title = column + " by epoch", .x_label = "epoch", .curves = {}};
    for (const std::string& name : {column, "val_" + column}) {
      const auto values = metrics->of.find(name);
      if (values == metrics->of.end()) continue;
      page::Curve& curve = chart.curves.emplace_back();
      curve.name = name;
      for (const auto& [epoch, value] : values->second) {
        curve.x.push_back(static_cast<double>(epoch));
        curve.y.push_back(value);
      }
    }
    const bool drawable = std::ranges::any_of(
        chart.curves, [](const page::Curve& curve) { return curve.x.size() > 1; });
    if (drawable) contents.charts.push_back(std::move(chart));
  }
}

std::string charts_text(const PageContents& contents, const ExplainedRun& explained) {
  const TerminalStyle style = style_of_output();
  std::string text = "\n" + terminal_waterfall(explained.explanation, style);
  if (contents.timeline) {
    text += fmt::format("\na step of {:.3g} ms\n", contents.timeline->step_ms) +
            terminal_timeline(*contents.timeline, style);
  }
  if (explained.profile.replicas > 1) {
    text += "\nwhere the time of each replica went\n" + terminal_replicas(contents.replicas, style);
  }
  if (contents.speed_up.size() > 1) {
    text += "\n" + terminal_speed_up(contents.speed_up, style);
    if (!contents.speed_up_note.empty()) text += contents.speed_up_note + "\n";
  }
  return text;
}

void print_all(const ExplainOptions& options, const ExplainedRun& explained,
               const PageContents& contents) {
  fmt::print("{}{}", text_of(explained.explanation), critical_text(explained));
  if (explained.outlook) fmt::print("\n{}", text_of(*explained.outlook));
  if (!options.no_charts) fmt::print("{}", charts_text(contents, explained));
  if (!explained.alone) {
    fmt::print(
        "\nWhat one device does alone is not known{}{}: computation that does not shrink with the "
        "batch and what\ndevices take from one another are counted as used, and there is no "
        "advice.\n",
        explained.why_not_alone.empty() ? "" : ": ", explained.why_not_alone);
  }
}

void run(const ExplainOptions& options) {
  check_target("--json", options.json);
  check_target("--html", options.html);
  check_target("--trace", options.trace);
  const ExplainedRun explained = explain_run(options.run, !options.no_measure);
  PageContents contents = page_of(explained.profile, explained.explanation, explained.curve);
  add_epochs(contents, options.run);
  const bool quiet = is_standard_output(options.json) || is_standard_output(options.html) ||
                     is_standard_output(options.trace);
  if (!quiet) print_all(options, explained, contents);
  if (!options.html.empty()) write_target("--html", options.html, page_html(contents));
  if (!options.trace.empty()) write_target("--trace", options.trace, trace_of(explained.profile));
  Json json = explanation_json(explained.explanation);
  json["critical_path"] = Json::array();
  for (const CriticalShare& share : explained.critical) {
    json["critical_path"].push_back({{"track", share.track},
                                     {"worker", share.worker},
                                     {"kind", name_of(share.kind)},
                                     {"fraction", share.seconds}});
  }
  if (!explained.curve.points.empty()) json["scaling"] = scaling_json(explained.curve);
  if (explained.outlook) json["time_to_loss"] = outlook_json(*explained.outlook);
  write_json(json, options.json);
}

}  // namespace

void add_explain(Program& program) {
  Command app = program.add_command("explain", "Says why a run was not as fast as its devices.");
  auto options = std::make_shared<ExplainOptions>();
  app.add_option("run", options->run, "a run's folder (runs/last)").required();
  app.add_option("--html", options->html,
                 "write a page with pictures to this file, which needs nothing else to be read");
  app.add_option("--trace", options->trace,
                 "write the steps that were recorded as a trace for Perfetto");
  app.add_flag("--no-measure", options->no_measure,
               "use only what the run recorded; measure nothing on this machine");
  app.add_flag("--no-charts", options->no_charts, "print the text without the charts");
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
