#include "lockstep/explain/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <stack>

#include "explain/sample_page.h"
#include "lockstep/explain/page_text.h"
#include "lockstep/explain/waterfall.h"

namespace lockstep::testing {
namespace {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Expects that every element is closed in order, as far as HTML asks for it. (No std::regex: it
// recurses for every character, which overflows the stack of a sanitized build on a whole page.)
void expect_well_formed(const std::string& html) {
  const std::set<std::string> open_ended = {"meta", "link"};
  std::stack<std::string> open;
  const std::size_t style = html.find("<style>");
  const std::size_t style_end = html.find("</style>");
  const std::size_t script = html.find("<script");
  for (std::size_t at = html.find('<'); at < script; at = html.find('<', at + 1)) {
    if (at >= style && at <= style_end) continue;  // not markup
    const std::size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos) << at;
    const std::string_view tag = std::string_view(html).substr(at + 1, end - at - 1);
    const bool closes = tag.starts_with("/");
    const std::string name(tag.substr(closes ? 1 : 0, tag.find_first_of(" \n") - (closes ? 1 : 0)));
    if (name.starts_with("!") || open_ended.contains(name) || tag.ends_with("/")) continue;
    if (!closes) {
      open.push(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.top(), name) << at;
    open.pop();
  }
  ASSERT_EQ(open.size(), 2u);  // html and body: the script was cut off
}

TEST(Page, ShowsEveryPartThatIsKnownAndNoOther) {
  const std::vector<std::string> ids = {"waterfall", "advice", "speed-up", "predicted", "timeline",
                                        "replicas",  "input",  "memory",   "chart-1",   "noise"};
  const std::string full = page_html(sample_page());
  const std::string empty = page_html({});
  for (const std::string& id : ids) {
    EXPECT_TRUE(holds(full, "<section id=\"" + id + "\"")) << id;
    EXPECT_FALSE(holds(empty, "<section id=\"" + id + "\"")) << id;
  }
  expect_well_formed(full);
  expect_well_formed(empty);
  PageContents some;
  some.replicas = sample_page().replicas;
  expect_well_formed(page_html(some));
  EXPECT_TRUE(holds(page_html(some), "id=\"replicas\""));
  EXPECT_FALSE(holds(page_html(some), "id=\"waterfall\""));
}

TEST(Page, SaysTheNumbersInText) {
  const std::string html = page_html(sample_page());
  for (const char* number :
       {"2.40×", "60.0%", "−0.60× · 15.0% · 15.0 s", "bucket 3 of 5",
        "100.0% − 12.0% − 15.0% − 8.0% − 5.0% = 60.0%", "12.1 ms (11.5 ms to 12.9 ms)",
        "fairly sure (85%)", "clock ± 250 µs", "map decode is the busiest, 92.0%",
        "cpu:0 waits most, 20.0% of its time", "while node_1001 runs",
        "<span>--batch-per-replica</span> <span>128</span>", "a larger one still pays"}) {
    EXPECT_TRUE(holds(html, number)) << number;
  }
}

TEST(Page, LoadsNothing) {
  const std::string html = page_html(sample_page());
  for (const char* forbidden : {"http://", "https://", "src=", "@import", "url(", "href=\"/"}) {
    EXPECT_FALSE(holds(html, forbidden)) << forbidden;
  }
  EXPECT_TRUE(holds(html, "default-src 'none'"));
}

TEST(Page, NamesAreTextWhateverTheyHold) {
  const std::string evil = "<script>alert(1)</script>\"' onload=x <svg/onload=alert(2)>";
  PageContents contents = sample_page();
  contents.title = contents.subtitle = evil;
  contents.explanation->lost[0].where = evil;
  contents.explanation->advice[0].change = contents.explanation->advice[0].command = evil;
  contents.explanation->advice[0].gain = evil;
  contents.timeline->tracks[0].name = contents.timeline->tracks[0].spans[0].name = evil;
  contents.input[0].name = evil;
  contents.input[1].name = evil;
  for (MemoryAt& at : contents.memory->instructions) at.instruction = evil;
  contents.memory->peak[0].layer = contents.replicas[0].name = evil;
  contents.replicas[0].parts[0].first = evil;
  contents.charts[0].title = contents.charts[0].curves[0].name = contents.charts[0].x_label = evil;
  contents.predictions[0].what = evil;
  const std::string html = page_html(contents);
  EXPECT_FALSE(holds(html, "<script>"));
  EXPECT_FALSE(holds(html, "<svg/onload"));
  EXPECT_FALSE(holds(html, "\"' onload"));
  EXPECT_TRUE(holds(html, "&lt;script&gt;alert(1)"));
  expect_well_formed(html);
}

TEST(Page, BytesThatAreNoTextAreReplaced) {
  EXPECT_EQ(page::escaped("a\xFF\xC3(\x01\x7F\xE2\x82"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(page::escaped("größer → 4×"), "größer → 4×");
  EXPECT_EQ(page::escaped("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Page, NumbersThatAreNotFiniteAreNoCoordinates) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  PageContents contents = sample_page();
  contents.explanation->speed_up = kNaN;
  contents.explanation->lost[0].fraction = kInfinite;
  contents.explanation->predicted->measured_ms = 0;
  contents.charts[0].curves[0].y[3] = kNaN;
  contents.charts[0].curves[0].y[5] = kInfinite;
  contents.noise[2].low = -1;
  contents.noise[3].high = kNaN;
  contents.replicas[0].parts[0].second = kNaN;
  contents.timeline->tracks[0].spans[0].end_ms = kNaN;
  contents.timeline->tracks[0].spans[1].begin_ms = 1e9;  // after its end
  contents.speed_up[1].measured = kNaN;
  const std::string html = page_html(contents);
  expect_well_formed(html);
  const std::regex coordinate("(=\"|[ MLHV:])-?(nan|inf)");
  EXPECT_FALSE(std::regex_search(html, coordinate));
}

TEST(Page, StaysSmallHoweverMuchThereIs) {
  PageContents contents = sample_page();
  contents.timeline = sample_timeline(200, 3000);
  contents.memory->instructions.resize(50000, contents.memory->instructions[7]);
  contents.charts[0].curves[0].x.clear();
  contents.charts[0].curves[0].y.clear();
  for (int i = 0; i < 200000; ++i) {
    contents.charts[0].curves[0].x.push_back(i);
    contents.charts[0].curves[0].y.push_back(i == 77777 ? 1000.0 : 1.0 / (i + 1));
  }
  for (int i = 0; i < 1000; ++i) contents.replicas.push_back(contents.replicas[0]);
  const std::string html = page_html(contents);
  EXPECT_LT(html.size(), 2'000'000u);
  EXPECT_TRUE(holds(html, "176 more tracks are left out"));
  EXPECT_TRUE(holds(html, "388 0L") || holds(html, "389 0L"));  // the peak of the curve is drawn
}

TEST(Waterfall, BeginsAtTheIdealAndEachRowWhereTheOneBeforeEnds) {
  const std::vector<WaterfallRow> rows = waterfall_of(sample_explanation());
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows.front().kind, WaterfallRow::Kind::Ideal);
  EXPECT_EQ(rows.back().kind, WaterfallRow::Kind::Got);
  EXPECT_DOUBLE_EQ(rows[1].end, 1);
  for (std::size_t i = 2; i + 1 < rows.size(); ++i) {
    EXPECT_DOUBLE_EQ(rows[i].end, rows[i - 1].begin);
  }
  EXPECT_NEAR(rows[4].begin, rows.back().end, 1e-12);
}

TEST(Waterfall, WhatDoesNotAddUpIsARowOfItsOwn) {
  Explanation explanation = sample_explanation();
  explanation.lost.pop_back();
  const std::vector<WaterfallRow> rows = waterfall_of(explanation);
  EXPECT_EQ(rows[rows.size() - 2].name, "not attributed");
  EXPECT_NEAR(rows[rows.size() - 2].fraction, 0.05, 1e-12);
}

TEST(Waterfall, MoreThanTheIdealIsAGain) {
  Explanation explanation;
  explanation.replicas = 2;
  explanation.seconds = 10;
  explanation.speed_up = 2.2;
  explanation.lost = {{Cause::Contention, -1, -0.1, ""}};
  const std::vector<WaterfallRow> rows = waterfall_of(explanation);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].kind, WaterfallRow::Kind::Gained);
  EXPECT_DOUBLE_EQ(rows[1].end, 1.1);
  EXPECT_DOUBLE_EQ(rows.back().end, 1.1);
  PageContents contents;
  contents.explanation = explanation;
  EXPECT_TRUE(holds(page_html(contents), "+0.20× · 10.0% · 1.0 s"));
}

}  // namespace
}  // namespace lockstep::testing
