// Helpers of the resolvers' tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster/spec_text.h"
#include "lockstep/base/error.h"
#include "lockstep/cluster/cluster_resolver.h"

namespace lockstep {

// What a resolver finds: a line, "nothing", or "error: " and its message.
inline std::string found_by(const ClusterResolver& resolver) {
  try {
    const auto spec = resolver.resolve();
    return spec ? spec_text(*spec) : "nothing";
  } catch (const UsageError& error) {
    return std::string("error: ") + error.what();
  }
}

inline std::string found_in(const Environment& environment) {
  return found_by(*default_resolver(environment));
}

inline void expect_all_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

}  // namespace lockstep
