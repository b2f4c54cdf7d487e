#include "lockstep/cluster/launch/settings.h"

#include <set>

namespace lockstep::launch {
namespace {

std::string variable_of(const std::string& setting) {
  return setting.substr(0, setting.find('='));
}

}  // namespace

std::string value_in(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& setting : environment) {
    if (variable_of(setting) == name && setting.size() > name.size()) {
      return setting.substr(name.size() + 1);
    }
  }
  return "";
}

std::vector<std::string> merged(const std::vector<std::string>& environment,
                                const Variables& variables) {
  std::set<std::string> names;
  for (const auto& [name, value] : variables) names.insert(name);
  std::vector<std::string> result;
  for (const std::string& setting : environment) {
    if (!names.contains(variable_of(setting))) result.push_back(setting);
  }
  for (const auto& [name, value] : variables) {
    result.push_back(std::string(name).append("=").append(value));
  }
  return result;
}

}  // namespace lockstep::launch
