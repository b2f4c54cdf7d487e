// Element types of tensors and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class DType : std::uint8_t { F32, F64, F16, BF16, I32, I64, U8, Bool };

// Bytes of one element.
std::size_t size_of(DType dtype);

// "f32", "i64", "bool": the spelling used in messages and printed graphs.
std::string_view name_of(DType dtype);

// The dtype with this name; UsageError if there is none.
DType dtype_named(std::string_view name);

bool is_floating(DType dtype);

// The DType of a C++ type: dtype_of<float>() is F32. Bool is stored as one byte, like C++'s bool.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::F64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::I64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::U8;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::Bool;
}

}  // namespace lockstep
