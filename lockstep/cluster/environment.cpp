#include "lockstep/cluster/environment.h"

#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/cluster/in_quotes.h"

namespace lockstep {

std::optional<std::string> Environment::find(std::string_view name) const {
  const auto found = variables_.find(std::string(name));
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int> Environment::find_number(std::string_view name, int least, int most) const {
  const std::optional<std::string> text = find(name);
  if (!text) return std::nullopt;
  int value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  require(error == std::errc() && stop == end && value >= least && value <= most,
          "{}={} is not a whole number from {} to {}: correct or unset it", name, in_quotes(*text),
          least, most);
  return value;
}

}  // namespace lockstep
