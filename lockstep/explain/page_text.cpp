#include "lockstep/explain/page_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace lockstep::page {
namespace {

constexpr const char* kUnknown = "?";
constexpr const char* kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t length = first < 0x80                     ? 1
                             : first >= 0xC2 && first < 0xE0  ? 2
                             : first >= 0xE0 && first < 0xF0  ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || length > text.size()) return 0;
  std::uint32_t point = length == 1 ? first : first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    point = point << 6 | (byte(i) & 0x3FU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  return point < kLeast[length] || point > 0x10FFFF || surrogate ? 0 : length;
}

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0 || (length == 1 && (c < ' ' || c == 0x7F) && c != '\n' && c != '\t')) {
      out += kReplacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string percent_text(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f}%", 100 * fraction) : kUnknown;
}

std::string times_text(double times) {
  if (!std::isfinite(times)) return kUnknown;
  return times < 100 ? fmt::format("{:.2f}×", times) : fmt::format("{:.0f}×", times);
}

std::string ms_text(double ms) {
  if (!std::isfinite(ms)) return kUnknown;
  const double size = std::abs(ms);
  if (size >= 10e3) return seconds_text(ms / 1e3);
  if (size >= 1e3) return fmt::format("{:.2f} s", ms / 1e3);
  if (size >= 1 || size == 0) return fmt::format("{:.3g} ms", ms);
  return fmt::format("{:.3g} µs", ms * 1e3);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return kUnknown;
  const double size = std::abs(seconds);
  if (size < 1) return size == 0 ? "0 s" : ms_text(seconds * 1e3);
  if (size < 120) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::llround(seconds);
  if (size < 7200) return fmt::format("{} min {} s", whole / 60, std::abs(whole % 60));
  return fmt::format("{} h {} min", whole / 3600, std::abs(whole / 60 % 60));
}

std::string size_text(double bytes) {
  if (!std::isfinite(bytes)) return kUnknown;
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; std::abs(bytes) >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format(fmt::runtime(unit == 0 ? "{:.0f} {}" : "{:.1f} {}"), bytes, kUnits[unit]);
}

std::string short_text(double value) {
  if (!std::isfinite(value)) return kUnknown;
  return fmt::format("{:.4g}", value);
}

}  // namespace lockstep::page
