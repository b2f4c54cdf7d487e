// The timeline of one step: a row for each track, what is on the critical path in full colour.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/explain/page_parts.h"
#include "lockstep/explain/page_plot.h"
#include "lockstep/explain/page_text.h"

namespace lockstep::page {
namespace {

constexpr std::size_t kMostTracks = 24;
constexpr std::size_t kMostSpans = 6000;   // of all tracks: a page stays below a megabyte
constexpr std::size_t kMostCritical = 40;  // of the table
constexpr double kUnits = 10000;           // of the SVG, across
constexpr SpanKind kKinds[] = {SpanKind::Compute, SpanKind::Communication, SpanKind::Input,
                               SpanKind::Copy,    SpanKind::Wait,          SpanKind::Host};

double length_of(const TimelineSpan& span) {
  return span.end_ms - span.begin_ms;
}

double critical_ms(const TimelineTrack& track) {
  double ms = 0;
  for (const TimelineSpan& span : track.spans) ms += span.critical ? length_of(span) : 0;
  return ms;
}

// The tracks that hold most of the critical path, in their own order.
std::vector<const TimelineTrack*> chosen_tracks(const Timeline& timeline) {
  std::vector<std::size_t> order(timeline.tracks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return critical_ms(timeline.tracks[a]) > critical_ms(timeline.tracks[b]);
  });
  order.resize(std::min(order.size(), kMostTracks));
  std::ranges::sort(order);
  std::vector<const TimelineTrack*> tracks;
  for (const std::size_t i : order) tracks.push_back(&timeline.tracks[i]);
  return tracks;
}

// What is drawn as one rectangle: a span, or short ones that follow one another.
struct Drawn {
  const TimelineSpan* longest;
  double begin;
  double end;
  int count;
};

// Spans shorter than this are drawn together if they are of a kind or, if `mixed`, of any.
struct Merging {
  double shortest_ms;
  bool mixed;
};

std::vector<Drawn> drawn_spans(const TimelineTrack& track, const Merging& merging) {
  const auto [shortest_ms, mixed] = merging;
  std::vector<const TimelineSpan*> spans;
  for (const TimelineSpan& span : track.spans) {
    const bool drawable = std::isfinite(span.begin_ms) && std::isfinite(span.end_ms);
    if (drawable && length_of(span) >= 0) spans.push_back(&span);
  }
  std::ranges::stable_sort(spans, {}, [](const TimelineSpan* span) { return span->begin_ms; });
  std::vector<Drawn> drawn;
  for (const TimelineSpan* span : spans) {
    if (!drawn.empty()) {
      Drawn& last = drawn.back();
      const bool same =
          mixed || (last.longest->kind == span->kind && last.longest->critical == span->critical);
      const bool small =
          length_of(*span) < shortest_ms && (last.count > 1 || last.end - last.begin < shortest_ms);
      if (same && small && span->begin_ms - last.end < shortest_ms) {
        last.end = std::max(last.end, span->end_ms);
        if (length_of(*span) > length_of(*last.longest)) last.longest = span;
        ++last.count;
        continue;
      }
    }
    drawn.push_back({span, span->begin_ms, span->end_ms, 1});
  }
  return drawn;
}

// Few enough of all tracks together.
std::vector<std::vector<Drawn>> drawn_spans(const std::vector<const TimelineTrack*>& tracks,
                                            double step_ms) {
  std::vector<std::vector<Drawn>> drawn(tracks.size());
  for (const bool mixed : {false, true}) {
    for (double part = 2000; part > (mixed ? 1 : 250); part /= 2) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < tracks.size(); ++i) {
        drawn[i] = drawn_spans(*tracks[i], Merging{.shortest_ms = step_ms / part, .mixed = mixed});
        count += drawn[i].size();
      }
      if (count <= kMostSpans) return drawn;
    }
  }
  return drawn;
}

std::string title_of(const Drawn& drawn) {
  const std::string name =
      drawn.count == 1 ? drawn.longest->name
                       : fmt::format("{} and {} more", drawn.longest->name, drawn.count - 1);
  return fmt::format("{} ({}), {} at {}{}", name, lockstep::name_of(drawn.longest->kind),
                     ms_text(drawn.end - drawn.begin), ms_text(drawn.begin),
                     drawn.longest->critical ? ", critical" : "");
}

std::string track_html(const TimelineTrack& track, const std::vector<Drawn>& drawn,
                       double step_ms) {
  const double scale = kUnits / step_ms;
  const std::string error = track.clock_error_ms > 0 ? fmt::format(" <small>clock ± {}</small>",
                                                                   ms_text(track.clock_error_ms))
                                                     : "";
  std::string out = fmt::format(
      "<li><b>{}</b>{}<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 10000 100\" "
      "preserveAspectRatio=\"none\">",
      escaped(track.name), error, escaped("what " + track.name + " did in the step"));
  for (const Drawn& each : drawn) {
    const double width = std::max(4.0, (each.end - each.begin) * scale);
    out += fmt::format(
        "<rect class=\"{}{}\" x=\"{:.0f}\" y=\"{}\" width=\"{:.0f}\" "
        "height=\"{}\"><title>{}</title></rect>",
        lockstep::name_of(each.longest->kind), each.longest->critical ? " crit" : "",
        each.begin * scale, each.longest->critical ? 0 : 25, width,
        each.longest->critical ? 100 : 50, escaped(title_of(each)));
  }
  if (track.clock_error_ms > 0) {
    // As wide as a point of this row may be off, to either side.
    out += fmt::format("<path class=\"error\" d=\"M0 50H{:.0f}M0 20V80M{:.0f} 20V80\"/>",
                       2 * track.clock_error_ms * scale, 2 * track.clock_error_ms * scale);
  }
  return out + "</svg></li>\n";
}

std::string critical_table(const Timeline& timeline) {
  struct Row {
    const TimelineTrack* track;
    const TimelineSpan* span;
  };
  std::vector<Row> rows;
  for (const TimelineTrack& track : timeline.tracks) {
    for (const TimelineSpan& span : track.spans) {
      if (span.critical) rows.push_back({&track, &span});
    }
  }
  const std::size_t all = rows.size();
  std::ranges::stable_sort(rows, std::ranges::greater{},
                           [](const Row& row) { return length_of(*row.span); });
  rows.resize(std::min(rows.size(), kMostCritical));
  std::ranges::stable_sort(rows, {}, [](const Row& row) { return row.span->begin_ms; });
  std::vector<std::vector<std::string>> cells;
  for (const auto& [track, span] : rows) {
    cells.push_back({ms_text(span->begin_ms), ms_text(length_of(*span)), span->name,
                     std::string(lockstep::name_of(span->kind)), track->name});
  }
  const std::string summary =
      all > kMostCritical
          ? fmt::format("The {} longest of {} spans on the critical path", kMostCritical, all)
          : "The critical path, span by span";
  return cells.empty() ? "" : table_html(summary, {"at", "takes", "what", "kind", "where"}, cells);
}

}  // namespace

std::string timeline_html(const Timeline& timeline) {
  double step_ms = timeline.step_ms;
  double path_ms = 0;
  double error_ms = 0;
  for (const TimelineTrack& track : timeline.tracks) {
    path_ms += critical_ms(track);
    error_ms = std::max(error_ms, track.clock_error_ms);
    for (const TimelineSpan& span : track.spans) {
      if (std::isfinite(span.end_ms)) step_ms = std::max(step_ms, span.end_ms);
    }
  }
  if (!(step_ms > 0)) return "";
  const std::vector<const TimelineTrack*> tracks = chosen_tracks(timeline);
  const std::vector<std::vector<Drawn>> drawn = drawn_spans(tracks, step_ms);
  std::string picture = "<ol class=\"timeline\">\n";
  for (std::size_t i = 0; i < tracks.size(); ++i) {
    picture += track_html(*tracks[i], drawn[i], step_ms);
  }
  picture +=
      fmt::format("</ol><p class=\"ends\"><span>0</span><span>{}</span></p>", ms_text(step_ms));
  std::vector<Key> keys;
  for (const SpanKind kind : kKinds) {
    const std::string name(lockstep::name_of(kind));
    keys.push_back({name, name});
  }
  picture += legend_html(keys) + "<output class=\"span\"></output>" + critical_table(timeline);
  std::string sentence = fmt::format("One step of {}. ", ms_text(step_ms));
  if (path_ms > 0) {
    sentence += fmt::format(
        "What is on the critical path is tall and in full colour ({} of it); shorten that, and the "
        "step is shorter. ",
        ms_text(path_ms));
  }
  sentence += "Tap a span for its name.";
  if (error_ms > 0) {
    sentence += fmt::format(
        " Tracks of other workers may be shifted by up to {}: that is how well their clocks are "
        "known; the mark at the left of a row is as wide.",
        ms_text(error_ms));
  }
  if (tracks.size() < timeline.tracks.size()) {
    sentence +=
        fmt::format(" {} more tracks are left out.", timeline.tracks.size() - tracks.size());
  }
  return section_html("timeline", "Timeline of a step", sentence, picture);
}

}  // namespace lockstep::page
