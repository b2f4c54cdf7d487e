#include "lockstep/graph/attrs.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

struct Print {
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const Ints& value) const {
    return fmt::format("[{}]", fmt::join(value, ","));
  }
};

}  // namespace

template <class T>
const T& Attrs::get(std::string_view name) const {
  const auto found = items_.find(name);
  ensure(found != items_.end(), "attribute {} is missing in {}", name, str());
  const T* value = std::get_if<T>(&found->second);
  ensure(value != nullptr, "attribute {} has another type in {}", name, str());
  return *value;
}

template const std::int64_t& Attrs::get(std::string_view) const;
template const double& Attrs::get(std::string_view) const;
template const bool& Attrs::get(std::string_view) const;
template const std::string& Attrs::get(std::string_view) const;
template const Ints& Attrs::get(std::string_view) const;

std::string Attrs::str() const {
  if (items_.empty()) return "";
  std::vector<std::string> parts;
  for (const auto& [name, value] : items_) {
    parts.push_back(fmt::format("{}={}", name, std::visit(Print{}, value)));
  }
  return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

}  // namespace lockstep
