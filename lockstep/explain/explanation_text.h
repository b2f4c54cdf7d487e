// An explanation in words.
#pragma once

#include <string>

#include "lockstep/explain/explanation.h"

namespace lockstep {

// For people: a table that adds up, what was predicted, then the advice.
std::string text_of(const Explanation& explanation);

// Two or three sentences for the end of a run: the speed-up that was got and the one possible, what
// most was lost to, and the first advice. Of one replica: how much of its time it trained.
std::string paragraph_of(const Explanation& explanation);

}  // namespace lockstep
