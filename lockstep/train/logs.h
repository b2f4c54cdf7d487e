// Logs: named numbers in insertion order: {"loss", 0.3}, {"val_loss", 0.4}.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

class Logs {
 public:
  void set(std::string name, double value);  // replaces an existing value
  bool has(std::string_view name) const { return find(name).has_value(); }
  std::optional<double> find(std::string_view name) const;
  // UsageError, listing the existing names, if there is none of that name.
  double at(std::string_view name) const;
  double operator[](std::string_view name) const { return at(name); }

  const std::vector<std::pair<std::string, double>>& items() const { return items_; }
  std::string str() const;  // "loss: 0.3142 - accuracy: 0.8750"
  bool empty() const { return items_.empty(); }

 private:
  std::vector<std::pair<std::string, double>> items_;
};

std::ostream& operator<<(std::ostream& stream, const Logs& logs);

}  // namespace lockstep
