// Waterfall: the parts of an explanation in the order in which they are drawn, from what would be
// ideal to what was got, with where each begins and ends. For pages and for the terminal.
#pragma once

#include <string>
#include <vector>

#include "lockstep/explain/explanation.h"

namespace lockstep {

struct WaterfallRow {
  enum class Kind { Ideal, Lost, Gained, Got };
  Kind kind = Kind::Lost;
  std::string name;
  std::string where = {};
  double fraction = 0;  // of the run's time; negative where something was gained
  double seconds = 0;
  // What it covers, as fractions of the ideal: begin <= end.
  double begin = 0;
  double end = 0;
};

// The first row is the ideal, the last what was got. If the parts do not add up, a row before the
// last says how much is missing.
std::vector<WaterfallRow> waterfall_of(const Explanation& explanation);

}  // namespace lockstep
