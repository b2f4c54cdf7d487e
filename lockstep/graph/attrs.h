// The attributes of a node: a few named constants, read once, at planning.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep {

using Ints = std::vector<std::int64_t>;
using Attr = std::variant<std::int64_t, double, bool, std::string, Ints>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> items) : items_(items) {}

  bool has(std::string_view name) const { return items_.find(name) != items_.end(); }
  void set(std::string name, Attr value) { items_[std::move(name)] = std::move(value); }
  void remove(const std::string& name) { items_.erase(name); }

  // The value of an attribute; InternalError if it is missing or has another type.
  std::int64_t integer(std::string_view name) const { return get<std::int64_t>(name); }
  double real(std::string_view name) const { return get<double>(name); }
  bool flag(std::string_view name) const { return get<bool>(name); }
  const std::string& text(std::string_view name) const { return get<std::string>(name); }
  const Ints& ints(std::string_view name) const { return get<Ints>(name); }
  // The text, or "" if there is no such attribute.
  std::string text_or_empty(std::string_view name) const {
    return has(name) ? text(name) : std::string();
  }

  bool operator==(const Attrs&) const = default;
  std::string str() const;  // "{axis=1, keepdims=true}", or "" if there are none

 private:
  template <class T>
  const T& get(std::string_view name) const;

  std::map<std::string, Attr, std::less<>> items_;
};

}  // namespace lockstep
