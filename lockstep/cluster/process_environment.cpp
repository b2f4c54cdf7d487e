// The one file outside the program that reads the environment of the process.
#include <unistd.h>

#include "lockstep/cluster/environment.h"

namespace lockstep {

Environment process_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

}  // namespace lockstep
