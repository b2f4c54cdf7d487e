#include "lockstep/train/logs.h"

#include <ostream>

#include "lockstep/base/error.h"

namespace lockstep {

void Logs::set(std::string name, double value) {
  for (auto& [known, number] : items_) {
    if (known == name) {
      number = value;
      return;
    }
  }
  items_.emplace_back(std::move(name), value);
}

std::optional<double> Logs::find(std::string_view name) const {
  for (const auto& [known, number] : items_) {
    if (known == name) return number;
  }
  return std::nullopt;
}

double Logs::at(std::string_view name) const {
  if (const std::optional<double> value = find(name)) return *value;
  std::string names;
  for (const auto& [known, number] : items_) {
    if (!names.empty()) names += ", ";
    names += known;
  }
  fail<UsageError>("[logs] there is no '{}'; there are: {}", name,
                   names.empty() ? "none" : names.c_str());
}

std::string Logs::str() const {
  std::string text;
  for (const auto& [name, value] : items_) {
    text += fmt::format("{}{}: {:.4f}", text.empty() ? "" : " - ", name, value);
  }
  return text;
}

std::ostream& operator<<(std::ostream& stream, const Logs& logs) {
  return stream << logs.str();
}

}  // namespace lockstep
