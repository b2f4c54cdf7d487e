// The waterfall from the ideal to what was got, the advice, and predictions against measurements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/explain/page_parts.h"
#include "lockstep/explain/page_plot.h"
#include "lockstep/explain/page_text.h"
#include "lockstep/explain/waterfall.h"

namespace lockstep::page {
namespace {

const char* style_of(WaterfallRow::Kind kind) {
  switch (kind) {
    case WaterfallRow::Kind::Ideal:
      return "ideal";
    case WaterfallRow::Kind::Lost:
      return "lost";
    case WaterfallRow::Kind::Gained:
      return "gained";
    case WaterfallRow::Kind::Got:
      break;
  }
  return "got";
}

// "−0.42× · 10.5% · 3.1 s"
std::string value_of(const WaterfallRow& row, int replicas) {
  const double times = row.fraction * replicas;
  const bool total = row.kind == WaterfallRow::Kind::Ideal || row.kind == WaterfallRow::Kind::Got;
  if (total) return fmt::format("{} · {}", times_text(times), percent_text(row.fraction));
  return fmt::format("{}{} · {} · {}", times < 0 ? "+" : "−", times_text(std::abs(times)),
                     percent_text(std::abs(row.fraction)), seconds_text(std::abs(row.seconds)));
}

// A row: its label, its bar, and a line down to the bar of the next row, which begins there.
std::string row_html(const WaterfallRow& row, double scale, int replicas, bool last) {
  const double begin = 1000 * row.begin / scale;
  const double width = std::max(2.0, 1000 * (row.end - row.begin) / scale);
  const bool to_right =
      row.kind == WaterfallRow::Kind::Ideal || row.kind == WaterfallRow::Kind::Gained;
  std::string link;
  if (!last) {
    link = fmt::format("<path class=\"link\" d=\"M{:.0f} 0V100\"/>",
                       to_right ? 1000 * row.end / scale : begin);
  }
  const std::string where =
      row.where.empty() ? "" : fmt::format(" <small>{}</small>", escaped(row.where));
  return fmt::format(
      "<li><b>{}</b>{}<span class=\"v\">{}</span>"
      "<svg aria-hidden=\"true\" viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\">"
      "<path class=\"base\" d=\"M0 50H1000\"/>{}"
      "<rect class=\"{}\" x=\"{:.0f}\" y=\"12\" width=\"{:.0f}\" height=\"76\"/></svg></li>\n",
      escaped(row.name), where, value_of(row, replicas), link, style_of(row.kind), begin, width);
}

// "100.0% − 22.1% − 10.0% = 67.9%": the same numbers as in the rows.
std::string sum_text(const std::vector<WaterfallRow>& rows) {
  std::string sum = "100.0%";
  for (const WaterfallRow& row : rows) {
    if (row.kind == WaterfallRow::Kind::Lost) sum += " − " + percent_text(row.fraction);
    if (row.kind == WaterfallRow::Kind::Gained) sum += " + " + percent_text(-row.fraction);
  }
  return sum + " = " + percent_text(rows.back().fraction);
}

// A command of which lines are broken between words only, as far as they fit: not after the
// hyphens of its flags.
std::string unbroken_words(const std::string& command) {
  std::string out;
  for (std::size_t at = 0; at < command.size();) {
    const std::size_t end = std::min(command.find(' ', at), command.size());
    if (end > at) {
      out +=
          fmt::format("<span>{}</span>", escaped(std::string_view(command).substr(at, end - at)));
    }
    if (end < command.size()) out += ' ';
    at = end + 1;
  }
  return out;
}

std::string sure_text(double sure) {
  const char* how = sure >= 0.9   ? "very sure"
                    : sure >= 0.7 ? "fairly sure"
                    : sure >= 0.4 ? "likely"
                                  : "a guess";
  return fmt::format("{} ({:.0f}%)", how, 100 * sure);
}

}  // namespace

std::string waterfall_html(const Explanation& explanation) {
  const std::vector<WaterfallRow> rows = waterfall_of(explanation);
  double scale = 1;
  for (const WaterfallRow& row : rows) scale = std::max(scale, row.end);
  std::string picture = "<ol class=\"waterfall\">\n";
  for (const WaterfallRow& row : rows) {
    picture += row_html(row, scale, explanation.replicas, &row == &rows.back());
  }
  picture += "</ol>";
  const std::string sentence = fmt::format(
      "{} replica{} could be {} as fast as one; this run was {} as fast in {}. {}.",
      explanation.replicas, explanation.replicas == 1 ? "" : "s", times_text(explanation.replicas),
      times_text(explanation.speed_up), seconds_text(explanation.seconds), sum_text(rows));
  return section_html("waterfall", "Where the speed went", sentence, picture);
}

std::string advice_html(const Explanation& explanation) {
  if (explanation.advice.empty()) return "";
  std::string out = "<section id=\"advice\"><h2>What would change it</h2><ol class=\"advice\">";
  for (const Advice& advice : explanation.advice) {
    out += fmt::format("<li><b>{}</b> <span class=\"v\">{} faster, {}</span><p>{}</p>",
                       escaped(advice.change), times_text(advice.speed_up), sure_text(advice.sure),
                       escaped(advice.gain));
    if (!advice.command.empty()) {
      out += fmt::format("<pre class=\"command\"><code>{}</code></pre>",
                         unbroken_words(advice.command));
    }
    out += "</li>\n";
  }
  return out + "</ol></section>\n";
}

std::string predictions_html(const PageContents& contents) {
  std::vector<std::vector<std::string>> rows;
  double most = 0;
  const auto add = [&](const std::string& what, const std::string& predicted, double ms,
                       double measured) {
    const double error = measured > 0 ? ms / measured - 1 : NAN;
    if (std::isfinite(error)) most = std::max(most, std::abs(error));
    rows.push_back({what, predicted, ms_text(measured),
                    std::isfinite(error) ? fmt::format("{:+.1f}%", 100 * error) : "?"});
  };
  if (contents.explanation && contents.explanation->predicted) {
    const Predicted& of = *contents.explanation->predicted;
    add("a step of this run",
        fmt::format("{} ({} to {})", ms_text(of.step_ms), ms_text(of.low_ms), ms_text(of.high_ms)),
        of.step_ms, of.measured_ms);
  }
  for (const Prediction& of : contents.predictions) {
    add(of.what, ms_text(of.predicted_ms), of.predicted_ms, of.measured_ms);
  }
  if (rows.empty()) return "";
  std::string picture = "<div class=\"wide\"><table><tr>";
  for (const char* head : {"what", "predicted", "measured", "error"}) {
    picture += fmt::format("<th scope=\"col\">{}</th>", head);
  }
  for (const auto& row : rows) {
    picture += "</tr>\n<tr>";
    for (const std::string& cell : row) picture += fmt::format("<td>{}</td>", escaped(cell));
  }
  picture += "</tr></table></div>";
  const std::string sentence = fmt::format(
      "What was predicted before it was measured; the largest error is {}.", percent_text(most));
  return section_html("predicted", "Predicted and measured", sentence, picture);
}

}  // namespace lockstep::page
