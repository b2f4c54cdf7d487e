// What the hardship tests share: how long they are, and what every call of the program must do.
//
// A short form runs with the other tests. scripts/hardship runs the long one: it sets the numbers
// below and prints the seed, so that a failure can be reproduced.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "hardship/child.h"

namespace lockstep::hardship {

inline std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

inline std::mt19937_64 generator() {
  return std::mt19937_64(number_from("LOCKSTEP_HARDSHIP_SEED", 1));
}

inline std::size_t below(std::mt19937_64& random, std::size_t bound) {
  return static_cast<std::size_t>(random() % bound);
}

// Long enough for a busy machine and a sanitizer: a process that takes longer hangs.
inline constexpr std::chrono::minutes kLimit{3};

// Expects that it exited with one of the documented codes and, if it failed, said why.
inline void expect_orderly(const Ended& ended, const std::string& what) {
  EXPECT_FALSE(ended.hung) << what << " hung\n" << ended.output;
  EXPECT_EQ(ended.signal, 0) << what << " was ended by a signal\n" << ended.output;
  EXPECT_TRUE(ended.code >= 0 && ended.code <= 2) << what << " ended with " << ended.code << "\n"
                                                  << ended.output;
  if (ended.code == 1 || ended.code == 2) {
    EXPECT_NE(ended.output.find("lockstep: "), std::string::npos) << what << "\n" << ended.output;
  }
}

}  // namespace lockstep::hardship
