#include "lockstep/data/sources/csv_value.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <system_error>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kSpaces = " \t";

std::string_view trimmed(std::string_view field) {
  const std::size_t begin = field.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return field.substr(begin, field.find_last_not_of(kSpaces) - begin + 1);
}

// Fast path for numbers of few digits, which most fields are: if the floating type represents both
// the digits and the power of ten exactly, one division rounds correctly (Clinger, 1990).
template <class T>
struct Exact;
template <>
struct Exact<float> {
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 24;
  static constexpr float kPowers[] = {1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f,
                                      1e6f, 1e7f, 1e8f, 1e9f, 1e10f};
};
template <>
struct Exact<double> {
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 53;
  static constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                       1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                       1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
};

constexpr int kMostDigits = 18;  // always fit into 64 bits

// Reads digits with at most one decimal point; null for anything else.
template <class T>
const char* parse_short(const char* at, const char* end, T& value) {
  const bool negative = at != end && *at == '-';
  if (negative) ++at;
  const char* const begin = at;
  std::uint64_t digits = 0;
  const auto is_digit = [&] { return at != end && *at >= '0' && *at <= '9'; };
  for (; is_digit(); ++at) digits = 10 * digits + static_cast<std::uint64_t>(*at - '0');
  std::ptrdiff_t count = at - begin;
  std::ptrdiff_t decimals = 0;
  if (at != end && *at == '.') {
    const char* const point = at++;
    for (; is_digit(); ++at) digits = 10 * digits + static_cast<std::uint64_t>(*at - '0');
    decimals = at - point - 1;
    count += decimals;
  }
  constexpr auto kPowers = std::ssize(Exact<T>::kPowers);
  if (count == 0 || count > kMostDigits || digits > Exact<T>::kMost || decimals >= kPowers) {
    return nullptr;
  }
  value = static_cast<T>(digits);
  if (decimals > 0) value /= Exact<T>::kPowers[decimals];
  if (negative) value = -value;
  return at;
}

template <class T>
const char* parse_leading(const char* at, const char* end, char delimiter, std::byte* to) {
  T value;
  const char* stop = nullptr;
  const auto stopped = [&] { return stop != nullptr && (stop == end || *stop == delimiter); };
  if constexpr (std::is_floating_point_v<T>) stop = parse_short(at, end, value);
  if (!stopped()) {
    const std::from_chars_result result = std::from_chars(at, end, value);
    stop = result.ec == std::errc() ? result.ptr : nullptr;
    if (!stopped()) return nullptr;
  }
  std::memcpy(to, &value, sizeof(T));
  return stop;
}

template <class T>
CsvParsed parse_number(std::string_view field, std::byte* to) {
  if (field.starts_with('+') && !field.starts_with("+-")) field.remove_prefix(1);
  const char* const end = field.data() + field.size();
  T value{};
  std::from_chars_result result = std::from_chars(field.data(), end, value);
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return CsvParsed::NotANumber;
  if (result.ec == std::errc::result_out_of_range) {
    if constexpr (std::is_integral_v<T>) {
      return CsvParsed::OutOfRange;
    } else {
      long double wide = 0;
      result = std::from_chars(field.data(), end, wide);
      if (result.ec != std::errc() || std::fabs(wide) > 1) return CsvParsed::OutOfRange;
      value = static_cast<T>(wide);
    }
  }
  std::memcpy(to, &value, sizeof(T));
  return CsvParsed::Good;
}

CsvParsed parse_bool(std::string_view field, std::byte* to) {
  const bool yes = field == "1" || field == "true" || field == "True" || field == "TRUE";
  const bool no = field == "0" || field == "false" || field == "False" || field == "FALSE";
  if (!yes && !no) return CsvParsed::NotANumber;
  std::memcpy(to, &yes, sizeof(yes));
  return CsvParsed::Good;
}

}  // namespace

CsvParsed parse_value(std::string_view field, DType dtype, std::byte* to) {
  field = trimmed(field);
  switch (dtype) {
    case DType::F32:
      return parse_number<float>(field, to);
    case DType::F64:
      return parse_number<double>(field, to);
    case DType::I32:
      return parse_number<std::int32_t>(field, to);
    case DType::I64:
      return parse_number<std::int64_t>(field, to);
    case DType::Bool:
      return parse_bool(field, to);
    default:
      fail<InternalError>("[csv] {} cannot be read from text", name_of(dtype));
  }
}

const char* parse_leading(const char* at, const char* end, char delimiter, DType dtype,
                          std::byte* to) {
  switch (dtype) {
    case DType::F32:
      return parse_leading<float>(at, end, delimiter, to);
    case DType::F64:
      return parse_leading<double>(at, end, delimiter, to);
    case DType::I32:
      return parse_leading<std::int32_t>(at, end, delimiter, to);
    case DType::I64:
      return parse_leading<std::int64_t>(at, end, delimiter, to);
    default:
      return nullptr;
  }
}

}  // namespace lockstep
