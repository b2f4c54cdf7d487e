// Environment: variables by name, as the process has them or as a test makes them up. Resolvers
// read these and nothing else.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

class Environment {
 public:
  Environment() = default;
  Environment(std::initializer_list<std::pair<const std::string, std::string>> variables)
      : variables_(variables) {}
  explicit Environment(std::map<std::string, std::string> variables)
      : variables_(std::move(variables)) {}

  // A variable that is empty counts as not set.
  std::optional<std::string> find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name).has_value(); }
  // A whole number; UsageError, with the name and the value, if it is not one or is out of range.
  std::optional<int> find_number(std::string_view name, int least, int most) const;

 private:
  std::map<std::string, std::string> variables_;
};

// The variables of this process, as they are now.
Environment process_environment();

}  // namespace lockstep
