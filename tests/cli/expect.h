// Expectations that tests of the program share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cli/program.h"

namespace lockstep {

// Expects exit code 2, one line of errors that contains `mention`, and nothing on standard output.
inline void expect_wrong_use(const Program& program, const std::string& arguments,
                             const std::string& mention) {
  const Outcome outcome = program.run(arguments);
  EXPECT_EQ(outcome.code, 2) << arguments;
  EXPECT_EQ(outcome.error_lines(), 1u) << arguments << "\n" << outcome.err;
  EXPECT_NE(outcome.err.find(mention), std::string::npos) << arguments << "\n" << outcome.err;
  EXPECT_TRUE(outcome.out.empty()) << arguments << "\n" << outcome.out;
}

inline nlohmann::json parsed(const Program& program, const std::string& file) {
  return nlohmann::json::parse(program.text(file));
}

}  // namespace lockstep
