#include "lockstep/cli/number.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "lockstep/cli/format.h"

namespace lockstep::cli {
namespace {

// What the user typed, cut off if it is very long.
std::string shown(const std::string& text) {
  constexpr std::size_t kLongest = 24;
  if (text.empty()) return "''";
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "…";
}

template <class T>
std::optional<T> read(const std::string& text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

// Replaces the text by the number in decimal, so that CLI11 does not read 010 as octal.
template <class T, class Accepts>
Check checked(Accepts accepts, const std::string& range) {
  return [accepts, range](std::string& text) -> std::string {
    const std::optional<T> value = read<T>(text);
    if (!value || !accepts(*value)) return fmt::format("{} is not {}", shown(text), range);
    text = fmt::format("{}", *value);
    return "";
  };
}

}  // namespace

Check whole_number(std::int64_t low, std::int64_t high) {
  return checked<std::int64_t>(
      [=](std::int64_t value) { return low <= value && value <= high; },
      fmt::format("a whole number from {} to {}", count_text(low), count_text(high)));
}

Check seed_number() {
  return checked<std::uint64_t>([](std::uint64_t) { return true; },
                                "a whole number from 0 to 18,446,744,073,709,551,615");
}

Check number(double low, double high) {
  return checked<double>(
      [=](double value) { return std::isfinite(value) && low <= value && value <= high; },
      fmt::format("a number from {:g} to {:g}", low, high));
}

}  // namespace lockstep::cli
