#include "lockstep/nn/naming.h"

#include <fmt/format.h>

#include <cctype>

namespace lockstep {

std::string snake_case(std::string_view kind) {
  const auto is = [&](std::size_t i, int (*test)(int)) {
    return i < kind.size() && test(static_cast<unsigned char>(kind[i])) != 0;
  };
  std::string name;
  for (std::size_t i = 0; i < kind.size(); ++i) {
    const bool starts_word =
        is(i, std::isupper) && (is(i + 1, std::islower) || (i > 0 && is(i - 1, std::islower)));
    if (i > 0 && starts_word) name += '_';
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(kind[i])));
  }
  return name;
}

std::string join_path(std::string_view outer, std::string_view name) {
  return outer.empty() ? std::string(name) : fmt::format("{}/{}", outer, name);
}

std::string unique_name(const std::string& name,
                        const std::function<bool(const std::string&)>& taken) {
  std::string candidate = name;
  for (int i = 1; taken(candidate); ++i) candidate = fmt::format("{}_{}", name, i);
  return candidate;
}

}  // namespace lockstep
