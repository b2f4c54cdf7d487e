#include "lockstep/train/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

namespace lockstep {
namespace {

double quantile(std::vector<float> values, double q) {
  if (values.empty()) return 0.0;
  const auto place = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

}  // namespace

void Attribution::add(const Attribution& other, double times) {
  compute += other.compute * times;
  communication += other.communication * times;
  input += other.input * times;
  wait += other.wait * times;
  host += other.host * times;
  start += other.start * times;
  validation += other.validation * times;
  checkpoint += other.checkpoint * times;
}

AttributionParts parts_of(const Attribution& attribution) {
  return {{{"compute", attribution.compute},
           {"communication", attribution.communication},
           {"input", attribution.input},
           {"wait", attribution.wait},
           {"host", attribution.host},
           {"start", attribution.start},
           {"validation", attribution.validation},
           {"checkpoint", attribution.checkpoint}}};
}

std::string summary(const Attribution& attribution) {
  std::string text;
  for (const auto& [name, share] : parts_of(attribution)) {
    if (share < 0.01) continue;
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", name, 100 * share);
  }
  return text;
}

std::vector<double> History::series(std::string_view name) const {
  std::vector<double> values;
  bool known = epochs.empty();
  for (const EpochLog& epoch : epochs) {
    const std::optional<double> value = epoch.logs.find(name);
    known = known || value.has_value();
    values.push_back(value.value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  if (!known) epochs.front().logs.at(name);  // throws an error that lists the names
  return values;
}

double History::median_step_ms() const {
  return quantile(step_ms, 0.5);
}

double History::p99_step_ms() const {
  return quantile(step_ms, 0.99);
}

}  // namespace lockstep
