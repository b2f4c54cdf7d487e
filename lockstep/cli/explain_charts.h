// The main charts of an explanation, drawn with characters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/explain/page.h"

namespace lockstep::cli {

// What a terminal can show.
struct TerminalStyle {
  int width = 80;  // columns, at least 40
  bool colour = false;
  bool utf8 = true;
};
// Of standard output: its width if it is a terminal, else 80 columns without colour. NO_COLOR and
// TERM=dumb mean no colour; a locale without UTF-8 means ASCII.
TerminalStyle style_of_output();

// The text in so many columns; what a terminal would obey or cannot show is a "?".
std::string shortened(std::string_view text, std::size_t columns, const TerminalStyle& style);

// Each ends in a newline; no line is wider than the style says. Empty if there is nothing to show.
std::string terminal_waterfall(const Explanation& explanation, const TerminalStyle& style);
std::string terminal_speed_up(const std::vector<page::SpeedUp>& points, const TerminalStyle& style);
std::string terminal_timeline(const page::Timeline& timeline, const TerminalStyle& style);
std::string terminal_replicas(const std::vector<page::Replica>& replicas,
                              const TerminalStyle& style);

}  // namespace lockstep::cli
