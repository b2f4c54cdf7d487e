// Prints what this process finds out about its place in a job, as one line, and the remarks.
#include <cstdio>
#include <string>

#include "cluster/spec_text.h"
#include "lockstep/base/error.h"
#include "lockstep/cluster/cluster_resolver.h"

int main() {
  try {
    const auto spec = lockstep::default_resolver()->resolve();
    std::string text = "[" + lockstep::spec_text(*spec) + "]\n";
    for (const std::string& remark : spec->remarks) text += "remark: " + remark + "\n";
    std::fputs(text.c_str(), stdout);  // one call: lines of several processes do not mix
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
