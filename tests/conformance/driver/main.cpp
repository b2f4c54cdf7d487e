// conformance_driver AREA CASES RESULTS: computes the cases in a file (see case.py) with Lockstep.
// Results are tensors "<case>/<name>"; for a case that Lockstep refuses, the metadata holds the
// error message.
#include <fmt/format.h>

#include <cstdio>

#include "conformance/driver/case.h"

int main(int count, char** arguments) {
  if (count != 4) {
    fmt::print(stderr, "usage: conformance_driver AREA CASES RESULTS\n");
    return 2;
  }
  try {
    lockstep::TensorFile results;
    const std::vector<conformance::Case> cases = conformance::read_cases(arguments[2]);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      try {
        for (auto& [name, tensor] : conformance::run_case(arguments[1], cases[i])) {
          results.tensors.emplace(fmt::format("{}/{}", i, name), tensor);
        }
      } catch (const std::exception& error) {
        results.metadata.emplace(std::to_string(i), error.what());
      }
    }
    lockstep::save_safetensors(arguments[3], results);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
