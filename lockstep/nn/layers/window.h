// Small types for the options of window layers.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string>

#include "lockstep/graph/ops/conv.h"

namespace lockstep {

// The first member of options whose other members are numbers: it makes MaxPooling2D({3, 2}) a pool
// of 3 × 2 instead of options without names.
struct ByName {
  constexpr ByName() {}  // NOLINT: not an aggregate, on purpose
};

// Height and width: 3 means {3, 3}.
struct Pair {
  template <std::integral T>
  Pair(T both)  // NOLINT: one number is a pair
      : height(static_cast<std::int64_t>(both)), width(height) {}
  Pair(std::int64_t rows, std::int64_t columns) : height(rows), width(columns) {}

  std::array<std::int64_t, 2> array() const { return {height, width}; }
  bool operator==(const Pair&) const = default;

  std::int64_t height;
  std::int64_t width;
};

// "valid", "same", or numbers of zeros: 1 on every side, {2, 1} for rows and columns, {{top,
// bottom}, {left, right}}, {top, bottom, left, right}.
struct PaddingOption {
  PaddingOption(const char* name) : kind(name) {}             // NOLINT: a name is a padding
  PaddingOption(std::string name) : kind(std::move(name)) {}  // NOLINT
  template <std::integral T>
  PaddingOption(T all)  // NOLINT: one number is a padding
      : PaddingOption(static_cast<std::int64_t>(all), static_cast<std::int64_t>(all)) {}
  PaddingOption(std::int64_t rows, std::int64_t columns) : amounts{rows, rows, columns, columns} {}
  PaddingOption(std::int64_t top, std::int64_t bottom, std::int64_t left, std::int64_t right)
      : amounts{top, bottom, left, right} {}
  PaddingOption(std::array<std::int64_t, 2> rows, std::array<std::int64_t, 2> columns)
      : amounts{rows[0], rows[1], columns[0], columns[1]} {}

  bool operator==(const PaddingOption&) const = default;
  bool is_explicit() const { return kind.empty(); }
  Padding resolve(const Shape& image, Pair window, Pair stride, Pair dilation = 1) const {
    return is_explicit()
               ? amounts
               : resolve_padding(kind, image, window.array(), stride.array(), dilation.array());
  }

  std::string kind;  // empty: the amounts
  Padding amounts = {0, 0, 0, 0};
};

}  // namespace lockstep
