// Bars of shares: where the time of each replica went, and the stages of the input.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/explain/page_parts.h"
#include "lockstep/explain/page_plot.h"
#include "lockstep/explain/page_text.h"

namespace lockstep::page {
namespace {

constexpr std::size_t kMostBars = 64;

// The styles of the parts that an attribution has; others are drawn as host.
std::string style_of_part(const std::string& name) {
  for (const char* known : {"compute", "communication", "input", "copy", "wait", "host", "start",
                            "validation", "checkpoint"}) {
    if (name == known) return known;
  }
  return "host";
}

using Shares = std::vector<std::pair<std::string, double>>;

std::string bar_html(const std::string& label, const std::string& value, const Shares& parts) {
  std::string out = fmt::format(
      "<li><b>{}</b><span class=\"v\">{}</span><svg aria-hidden=\"true\" viewBox=\"0 0 1000 100\" "
      "preserveAspectRatio=\"none\"><path class=\"base\" d=\"M0 50H1000\"/>",
      escaped(label), escaped(value));
  double at = 0;
  for (const auto& [name, share] : parts) {
    if (!std::isfinite(share) || share <= 0) continue;
    const double width = std::min(share, std::max(0.0, 1 - at));
    out += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"12\" width=\"{:.1f}\" height=\"76\">"
        "<title>{} {}</title></rect>",
        style_of_part(name), 1000 * at, 1000 * width, escaped(name), percent_text(share));
    at += width;
  }
  return out + "</svg></li>\n";
}

double share_of(const Replica& replica, const std::string& part) {
  for (const auto& [name, share] : replica.parts) {
    if (name == part) return share;
  }
  return 0;
}

std::string shown_of(std::size_t shown, std::size_t all, const char* what) {
  return shown < all ? fmt::format(" {} of {} {} are shown.", shown, all, what) : "";
}

}  // namespace

std::string replicas_html(const std::vector<Replica>& replicas) {
  std::vector<std::string> names;  // of all parts, in the order in which they come
  for (const Replica& replica : replicas) {
    for (const auto& [name, share] : replica.parts) {
      if (share > 0 && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::string picture = "<ol class=\"bars\">\n";
  std::vector<std::vector<std::string>> rows;
  const std::vector<std::size_t> shown = spread_over(replicas.size(), kMostBars);
  for (const std::size_t i : shown) {
    const Replica& replica = replicas[i];
    picture += bar_html(replica.name, percent_text(share_of(replica, "compute")) + " compute",
                        replica.parts);
    std::vector<std::string> row = {replica.name};
    for (const std::string& name : names) row.push_back(percent_text(share_of(replica, name)));
    rows.push_back(std::move(row));
  }
  picture += "</ol>";
  std::vector<Key> keys;
  for (const std::string& name : names) keys.push_back({style_of_part(name), name});
  std::vector<std::string> head = {"replica"};
  head.insert(head.end(), names.begin(), names.end());
  picture += legend_html(keys) + table_html("The numbers", head, rows);

  const auto waits = [](const Replica& replica) { return share_of(replica, "wait"); };
  const auto least = std::ranges::min_element(replicas, {}, waits);
  const auto most = std::ranges::max_element(replicas, {}, waits);
  std::string sentence = "Where the time of each replica went.";
  constexpr double kWorthSaying = 0.02;
  if (waits(*most) > waits(*least) + kWorthSaying) {
    sentence += fmt::format(
        " {} waits most, {} of its time, and {} least, {}: the one that waits "
        "least is the one that the others wait for.",
        most->name, percent_text(waits(*most)), least->name, percent_text(waits(*least)));
  }
  sentence += shown_of(shown.size(), replicas.size(), "replicas");
  return section_html("replicas", "Replicas side by side", sentence, picture);
}

std::string input_html(const std::vector<InputStage>& stages) {
  std::string picture = "<ol class=\"bars\">\n";
  for (const InputStage& stage : stages) {
    const std::string threads =
        fmt::format("{} thread{}", stage.threads, stage.threads == 1 ? "" : "s");
    picture += bar_html(stage.name,
                        fmt::format("busy {} · waited for {} · {}", percent_text(stage.busy),
                                    percent_text(stage.waiting), threads),
                        {{"input", stage.busy}, {"wait", stage.waiting}});
  }
  picture += "</ol>" + legend_html({{"input", "busy"}, {"wait", "the next stage waits for it"}});
  const auto busiest =
      std::ranges::max_element(stages, {}, [](const InputStage& stage) { return stage.busy; });
  const std::string sentence =
      fmt::format("How busy the threads of each stage of the input were. {} is the busiest, {}.",
                  busiest->name, percent_text(busiest->busy));
  return section_html("input", "Input", sentence, picture);
}

}  // namespace lockstep::page
