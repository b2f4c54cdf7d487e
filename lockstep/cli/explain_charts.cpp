#include "lockstep/cli/explain_charts.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "lockstep/cli/chart.h"
#include "lockstep/cli/format.h"
#include "lockstep/explain/page_text.h"
#include "lockstep/explain/waterfall.h"

namespace lockstep::cli {
namespace {

constexpr std::size_t kMostBars = 32;  // tracks or replicas

// How a part of a bar is drawn: a character, so that no meaning needs colour, and a colour of the
// terminal's 256.
struct Ink {
  char sign;
  int colour;
};

Ink ink_of(std::string_view part) {
  struct Named {
    std::string_view name;
    Ink ink;
  };
  constexpr Named kInks[] = {
      {"compute", {'#', 32}}, {"communication", {'=', 166}}, {"input", {'i', 36}},
      {"copy", {'c', 74}},    {"wait", {'.', 178}},          {"host", {'h', 175}},
      {"start", {'s', 245}},  {"validation", {'v', 142}},    {"checkpoint", {'k', 97}}};
  for (const auto& [name, ink] : kInks) {
    if (name == part) return ink;
  }
  return {'?', 245};
}

std::string coloured(const std::string& text, int colour, const TerminalStyle& style) {
  return style.colour && !text.empty() ? fmt::format("\x1b[38;5;{}m{}\x1b[0m", colour, text) : text;
}

std::string padded(const std::string& text, std::size_t columns) {
  return text + std::string(columns - std::min(columns, display_width(text)), ' ');
}

std::size_t columns_of(const TerminalStyle& style) {
  return static_cast<std::size_t>(std::clamp(style.width, 40, 1000));
}

// A label column that leaves half of the line to the bars.
std::size_t label_columns(const std::vector<std::string>& labels, const TerminalStyle& style) {
  std::size_t widest = 1;
  for (const std::string& label : labels) widest = std::max(widest, display_width(label));
  return std::min(widest, columns_of(style) * 2 / 5);
}

std::string legend(const std::vector<std::string>& parts, const TerminalStyle& style) {
  std::string out;
  std::size_t used = 0;
  for (const std::string& part : parts) {
    const Ink ink = ink_of(part);
    const std::string name = shortened(part, 20, style);
    const std::size_t wide = display_width(name) + 2;
    if (used > 0 && used + 2 + wide > columns_of(style)) {
      out += '\n';
      used = 0;
    }
    if (used > 0) out += "  ";
    out += coloured(std::string(1, ink.sign), ink.colour, style) + " " + name;
    used += wide + (used > 0 ? 2 : 0);
  }
  return out.empty() ? out : out + '\n';
}

// The text's characters in runs of one ink each.
std::string inked(const std::vector<Ink>& cells, const TerminalStyle& style) {
  std::string out;
  for (std::size_t i = 0; i < cells.size();) {
    std::size_t end = i;
    while (end < cells.size() && cells[end].sign == cells[i].sign &&
           cells[end].colour == cells[i].colour) {
      ++end;
    }
    const std::string run(end - i, cells[i].sign);
    out += cells[i].sign == ' ' ? run : coloured(run, cells[i].colour, style);
    i = end;
  }
  return out;
}

std::string times(double value, const TerminalStyle& style) {
  return fmt::format("{:.2f}{}", value, style.utf8 ? "×" : "x");
}

std::string not_shown(std::size_t all, const char* what) {
  return all > kMostBars ? fmt::format("({} more {})\n", all - kMostBars, what) : "";
}

}  // namespace

std::string shortened(std::string_view text, std::size_t columns, const TerminalStyle& style) {
  std::vector<std::string> characters;
  while (!text.empty()) {
    const std::size_t length = page::utf8_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control = length == 0 || (length == 1 && (first < ' ' || first == 0x7F)) ||
                         (first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    const bool shown = !control && (length == 1 || style.utf8);
    characters.emplace_back(shown ? text.substr(0, length) : "?");
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  if (characters.size() > columns) {
    characters.resize(columns);
    characters.back() = style.utf8 ? "…" : "~";
  }
  return fmt::format("{}", fmt::join(characters, ""));
}

TerminalStyle style_of_output() {
  constexpr int kWidest = 120;
  TerminalStyle style;
  const auto is = [](const char* name, std::string_view value) {
    const char* set = std::getenv(name);
    return set != nullptr && set == value;
  };
  winsize size{};
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.width = std::min<int>(size.ws_col, kWidest);
  }
  const char* no_colour = std::getenv("NO_COLOR");
  style.colour = terminal && (no_colour == nullptr || *no_colour == 0) && !is("TERM", "dumb");
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first that is set counts
    const char* locale = std::getenv(name);
    if (locale == nullptr || *locale == 0) continue;
    const std::string_view value(locale);
    style.utf8 = value != "C" && value != "POSIX";
    if (value.find("UTF-8") != value.npos || value.find("utf8") != value.npos) style.utf8 = true;
    break;
  }
  return style;
}

std::string terminal_waterfall(const Explanation& explanation, const TerminalStyle& style) {
  const std::vector<WaterfallRow> rows = waterfall_of(explanation);
  double scale = 1;
  std::vector<std::string> labels;
  for (const WaterfallRow& row : rows) {
    if (std::isfinite(row.end)) scale = std::max(scale, row.end);
    labels.push_back(row.where.empty() ? row.name : row.name + ": " + row.where);
  }
  constexpr std::size_t kValue = 16;  // "    2.40× 100.0%"
  const std::size_t label = label_columns(labels, style);
  const std::size_t bar = columns_of(style) - label - kValue - 1;
  const auto column = [&](double part) {
    const double at = std::isfinite(part) ? std::clamp(part / scale, 0.0, 1.0) : 0.0;
    return static_cast<std::size_t>(std::lround(at * static_cast<double>(bar)));
  };
  std::string out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const WaterfallRow& row = rows[i];
    using Kind = WaterfallRow::Kind;
    const Ink ink = row.kind == Kind::Ideal  ? Ink{'-', 245}
                    : row.kind == Kind::Got  ? Ink{'#', 32}
                    : row.kind == Kind::Lost ? Ink{'=', 166}
                                             : Ink{'+', 36};
    std::vector<Ink> cells(bar, Ink{' ', 0});
    for (std::size_t c = column(row.begin); c < column(row.end); ++c) cells[c] = ink;
    const bool total = row.kind == Kind::Ideal || row.kind == Kind::Got;
    const double shown = row.fraction * explanation.replicas * (total ? 1 : -1);
    const std::string value = times(shown, style);
    out += padded(shortened(labels[i], label, style), label) + " " + inked(cells, style) + " " +
           std::string(8 - std::min<std::size_t>(8, display_width(value)), ' ') + value +
           fmt::format(" {:>5.1f}%", 100 * row.fraction * (total ? 1 : -1));
    out += '\n';
  }
  return out;
}

std::string terminal_speed_up(const std::vector<page::SpeedUp>& points,
                              const TerminalStyle& style) {
  if (points.empty()) return "";
  Series ideal{.name = "ideal", .x = {}, .y = {}};
  Series measured{.name = "measured", .x = {}, .y = {}};
  Series predicted{.name = "predicted", .x = {}, .y = {}};
  for (const page::SpeedUp& point : points) {
    const double replicas = point.replicas;
    ideal.x.push_back(replicas);
    ideal.y.push_back(replicas);
    if (point.measured) {
      measured.x.push_back(replicas);
      measured.y.push_back(*point.measured);
    }
    if (point.predicted) {
      predicted.x.push_back(replicas);
      predicted.y.push_back(*point.predicted);
    }
  }
  Panel panel{.title = "speed-up", .x_label = "replicas", .series = {}, .log_x = false};
  for (Series* series : {&measured, &predicted, &ideal}) {
    if (!series->x.empty()) panel.series.push_back(std::move(*series));
  }
  return terminal_chart({panel}, static_cast<int>(columns_of(style)), style.utf8);
}

std::string terminal_timeline(const page::Timeline& timeline, const TerminalStyle& style) {
  double step_ms = timeline.step_ms;
  std::vector<std::string> labels;
  for (const page::TimelineTrack& track : timeline.tracks) {
    labels.push_back(track.clock_error_ms > 0
                         ? fmt::format("{} ({}{:.3g} ms)", track.name, style.utf8 ? "±" : "+-",
                                       track.clock_error_ms)
                         : track.name);
    for (const page::TimelineSpan& span : track.spans) {
      if (std::isfinite(span.end_ms)) step_ms = std::max(step_ms, span.end_ms);
    }
  }
  if (!(step_ms > 0)) return "";
  const std::size_t label = label_columns(labels, style);
  const std::size_t bar = columns_of(style) - label - 1;
  std::string out;
  std::array<bool, 6> used = {};
  bool marked = false;
  for (std::size_t t = 0; t < std::min(timeline.tracks.size(), kMostBars); ++t) {
    // A column shows the kind that fills most of it, and below whether the critical path is there.
    std::vector<std::array<double, 6>> filled(bar);
    std::vector<double> critical(bar);
    for (const page::TimelineSpan& span : timeline.tracks[t].spans) {
      const double begin = span.begin_ms / step_ms * static_cast<double>(bar);
      const double end = span.end_ms / step_ms * static_cast<double>(bar);
      if (!(begin >= 0) || !(end > begin)) continue;
      for (auto c = static_cast<std::size_t>(begin); c < bar && static_cast<double>(c) < end; ++c) {
        const double at = static_cast<double>(c);
        const double part = std::min(end, at + 1) - std::max(begin, at);
        filled[c][static_cast<std::size_t>(span.kind)] += part;
        if (span.critical) critical[c] += part;
      }
    }
    std::vector<Ink> cells(bar, Ink{' ', 0});
    std::string path(bar, ' ');
    for (std::size_t c = 0; c < bar; ++c) {
      const auto most = std::ranges::max_element(filled[c]);
      if (*most < 0.25) continue;
      const auto kind = static_cast<std::size_t>(most - filled[c].begin());
      used[kind] = true;
      cells[c] = ink_of(name_of(static_cast<SpanKind>(kind)));
      if (critical[c] >= 0.5) path[c] = '^', marked = true;
    }
    out += padded(shortened(labels[t], label, style), label) + " " + inked(cells, style) + '\n';
    path.resize(path.find_last_not_of(' ') + 1);
    if (!path.empty()) out += std::string(label + 1, ' ') + path + '\n';
  }
  out += not_shown(timeline.tracks.size(), "tracks");
  const std::string end = fmt::format("{:.3g} ms", step_ms);
  out += std::string(label + 1, ' ') + "0" + std::string(bar - std::min(bar, end.size() + 1), ' ') +
         end + '\n';
  std::vector<std::string> parts;
  for (std::size_t kind = 0; kind < used.size(); ++kind) {
    if (used[kind]) parts.emplace_back(name_of(static_cast<SpanKind>(kind)));
  }
  return out + legend(parts, style) + (marked ? "^ critical path\n" : "");
}

std::string terminal_replicas(const std::vector<page::Replica>& replicas,
                              const TerminalStyle& style) {
  if (replicas.empty()) return "";
  std::vector<std::string> labels;
  std::vector<std::string> parts;
  for (const page::Replica& replica : replicas) {
    labels.push_back(replica.name);
    for (const auto& [name, share] : replica.parts) {
      if (share > 0 && std::ranges::find(parts, name) == parts.end()) parts.push_back(name);
    }
  }
  constexpr std::size_t kValue = 8;  // "   96%"
  const std::size_t label = label_columns(labels, style);
  const std::size_t bar = columns_of(style) - label - kValue;
  std::string out;
  for (std::size_t r = 0; r < std::min(replicas.size(), kMostBars); ++r) {
    std::vector<Ink> cells(bar, Ink{' ', 0});
    double at = 0;
    double compute = 0;
    for (const auto& [name, share] : replicas[r].parts) {
      if (!std::isfinite(share) || share <= 0) continue;
      if (name == "compute") compute = share;
      const auto column = [&](double part) {
        return static_cast<std::size_t>(
            std::lround(std::min(part, 1.0) * static_cast<double>(bar)));
      };
      for (std::size_t c = column(at); c < column(at + share); ++c) cells[c] = ink_of(name);
      at += share;
    }
    out += padded(shortened(labels[r], label, style), label) + " " + inked(cells, style) +
           fmt::format(" {:>4.0f}%", 100 * compute) + '\n';
  }
  out += not_shown(replicas.size(), "replicas");
  return out + legend(parts, style);
}

}  // namespace lockstep::cli
