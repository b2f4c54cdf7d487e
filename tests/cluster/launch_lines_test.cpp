// What workers write becomes whole lines, and the chief's progress one updating line.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/cluster/launch/lines.h"
#include "lockstep/cluster/launch/screen.h"

namespace lockstep::launch {
namespace {

struct Seen {
  std::vector<std::string> lines, progress;
  std::vector<bool> was_progress;
  Lines cut{[this](const Lines::Line& line) {
              lines.emplace_back(line.text);
              was_progress.push_back(line.progress);
            },
            [this](std::string_view text) { progress.emplace_back(text); }};
};

TEST(Lines, APartialLineIsHeldUntilItIsWhole) {
  Seen seen;
  seen.cut.add("one\ntw");
  EXPECT_EQ(seen.lines, std::vector<std::string>{"one"});
  seen.cut.add("o\n\nthree");
  EXPECT_EQ(seen.lines, (std::vector<std::string>{"one", "two", ""}));
  seen.cut.end();
  EXPECT_EQ(seen.lines, (std::vector<std::string>{"one", "two", "", "three"}));
  EXPECT_TRUE(seen.progress.empty());
}

TEST(Lines, TextThatIsWrittenOverIsProgressHoweverItIsCut) {
  const std::string text = "1/3\r2/3\r3/3\nnext\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    Seen seen;
    for (std::size_t i = 0; i < text.size(); i += piece) seen.cut.add(text.substr(i, piece));
    EXPECT_EQ(seen.lines, (std::vector<std::string>{"3/3", "next"}));
    EXPECT_EQ(seen.was_progress, (std::vector<bool>{true, false}));
    EXPECT_EQ(std::ranges::count(seen.progress, "1/3"), 1) << piece;
    EXPECT_GE(std::ranges::count(seen.progress, "2/3"), 1) << piece;
  }
}

TEST(Lines, ProgressThatBeginsWithACarriageReturnIsShownAtOnce) {
  Seen seen;
  seen.cut.add("\r50%");
  EXPECT_EQ(seen.progress.back(), "50%");
  seen.cut.add("\r100%");
  EXPECT_EQ(seen.progress.back(), "100%");
  seen.cut.end();
  EXPECT_EQ(seen.lines, std::vector<std::string>{"100%"});
  EXPECT_EQ(seen.was_progress, std::vector<bool>{true});
}

TEST(Lines, ALineMayEndAsOnOtherSystems) {
  Seen seen;
  seen.cut.add("one\r\ntwo\r\n");
  EXPECT_EQ(seen.lines, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(seen.was_progress, (std::vector<bool>{false, false}));
}

TEST(Lines, WhatIsHeldDoesNotGrowWithoutEnd) {
  Seen seen;
  for (int i = 0; i < 40; ++i) seen.cut.add(std::string(1 << 16, 'x'));
  EXPECT_GE(seen.lines.size(), 2u);
}

TEST(Screen, ProgressStaysBelowTheLinesAndFitsTheTerminal) {
  std::string shown;
  const auto add = [&](std::string_view text) { shown += text; };
  Screen screen({.out = add, .err = add, .columns = 12});
  screen.progress("[0] ", "äöü 1/2 and much more");
  EXPECT_EQ(shown, "[0] äöü 1/2");
  shown.clear();
  screen.line(Screen::Stream::Err, "[1] ", "a line");
  EXPECT_EQ(shown, "\r\x1b[K[1] a line\n[0] äöü 1/2");
  shown.clear();
  screen.clear_progress();
  screen.line(Screen::Stream::Out, "[0] ", "2/2");
  EXPECT_EQ(shown, "\r\x1b[K[0] 2/2\n");
}

TEST(Screen, WithoutATerminalThereIsNoProgress) {
  std::string shown;
  const auto add = [&](std::string_view text) { shown += text; };
  Screen screen({.out = add, .err = add, .columns = 0});
  screen.progress("[0] ", "1/2");
  screen.line(Screen::Stream::Out, "[0] ", "2/2");
  EXPECT_EQ(shown, "[0] 2/2\n");
}

}  // namespace
}  // namespace lockstep::launch
