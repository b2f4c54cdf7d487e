#include "lockstep/cli/explain_charts.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "explain/sample_page.h"
#include "lockstep/cli/chart.h"
#include "lockstep/cli/format.h"

namespace lockstep::testing {
namespace {

using cli::TerminalStyle;

std::string all_charts(const PageContents& contents, const TerminalStyle& style) {
  return cli::terminal_waterfall(*contents.explanation, style) +
         cli::terminal_speed_up(contents.speed_up, style) +
         cli::terminal_timeline(*contents.timeline, style) +
         cli::terminal_replicas(contents.replicas, style);
}

std::string without_colour(const std::string& text) {
  return std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m"), "");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(TerminalCharts, FitEveryWidth) {
  PageContents contents = sample_page();
  contents.replicas[0].name = contents.timeline->tracks[0].name = std::string(300, 'n');
  contents.explanation->lost[0].where = "größer als jede Zeile, und zwar um sehr, sehr vieles";
  for (int width = 40; width <= 200; width += 7) {
    for (const bool utf8 : {false, true}) {
      const TerminalStyle style{.width = width, .colour = true, .utf8 = utf8};
      for (const std::string& line : lines_of(without_colour(all_charts(contents, style)))) {
        EXPECT_LE(cli::display_width(line), static_cast<std::size_t>(width)) << line;
      }
    }
  }
}

TEST(TerminalCharts, AreAsciiWhereTheTerminalIs) {
  PageContents contents = sample_page();
  contents.replicas[0].name = "größer\x1b[31m";
  const std::string plain = all_charts(contents, {.width = 80, .colour = false, .utf8 = false});
  for (const char c : plain) EXPECT_TRUE(c == '\n' || (c >= ' ' && c < 0x7F)) << int{c};
}

TEST(TerminalCharts, ColourChangesNothingElse) {
  const PageContents contents = sample_page();
  const std::string plain = all_charts(contents, {.width = 100, .colour = false});
  const std::string colour = all_charts(contents, {.width = 100, .colour = true});
  EXPECT_NE(plain, colour);
  EXPECT_EQ(plain, without_colour(colour));
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
}

TEST(TerminalCharts, NamesCannotCommandTheTerminal) {
  PageContents contents = sample_page();
  const std::string evil =
      "\x1b]0;owned\x07\r\n\x9b"
      "31m";
  contents.replicas[0].name = contents.timeline->tracks[0].name = evil;
  contents.explanation->lost[0].where = evil;
  const std::string text = all_charts(contents, {.width = 80});
  for (const char* sequence : {"\x1b", "\x07", "\r", "\x9b"}) {
    EXPECT_EQ(text.find(sequence), std::string::npos);
  }
}

TEST(TerminalCharts, EachBarOfTheWaterfallBeginsWhereTheOneBeforeEnds) {
  const std::vector<std::string> lines =
      lines_of(cli::terminal_waterfall(sample_explanation(), {.width = 120, .utf8 = false}));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_NE(lines[0].find("4.00x 100.0%"), std::string::npos) << lines[0];
  EXPECT_NE(lines[2].find("bucket 3 of 5"), std::string::npos);
  EXPECT_NE(lines[2].find("-0.60x -15.0%"), std::string::npos) << lines[2];
  EXPECT_NE(lines[5].find("2.40x  60.0%"), std::string::npos) << lines[5];
  std::size_t end = lines[0].rfind("--") + 2;
  for (std::size_t i = 1; i + 1 < lines.size(); ++i) {
    EXPECT_EQ(lines[i].rfind('=') + 1, end) << lines[i];
    end = lines[i].find('=');
  }
  EXPECT_EQ(lines[5].rfind('#') + 1, end);
}

TEST(TerminalCharts, TheTimelineMarksTheCriticalPath) {
  page::Timeline timeline{.step_ms = 10, .tracks = {}};
  timeline.tracks.push_back(
      {.name = "a",
       .spans = {{"x", SpanKind::Compute, 0, 5, true}, {"y", SpanKind::Wait, 5, 10, false}}});
  timeline.tracks.push_back({.name = "b",
                             .spans = {{"x", SpanKind::Compute, 0, 4, false},
                                       {"all_reduce", SpanKind::Communication, 5, 10, true}},
                             .clock_error_ms = 0.5});
  const std::vector<std::string> lines =
      lines_of(cli::terminal_timeline(timeline, {.width = 40, .utf8 = false}));
  ASSERT_GE(lines.size(), 4u);
  EXPECT_NE(lines[2].find("b (+-0.5 ms)"), std::string::npos);
  EXPECT_EQ(lines[1].find_first_not_of(' '), lines[0].find('#'));
  EXPECT_EQ(lines[1].rfind('^'), lines[0].rfind('#'));
  EXPECT_EQ(lines[3].find('^'), lines[2].find('='));
  EXPECT_EQ(lines[3].rfind('^'), lines[2].rfind('='));
}

}  // namespace
}  // namespace lockstep::testing
