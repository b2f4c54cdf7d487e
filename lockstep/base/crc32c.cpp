// Two ways to compute the same remainder. Tables: Kounavis and Berry's slicing by 8 (2005), one
// independent look-up per byte of a word. SSE 4.2's crc32 instruction: it has a latency of three
// cycles and a throughput of one per cycle, so three adjacent blocks are processed at once. Their
// remainders are combined by linearity: crc(a b) = shift(crc(a)) ^ crc(b), where shift appends as
// many zero bytes as b has; for a block of fixed length that is four look-ups.
#include "lockstep/base/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>
#include <cstddef>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // bits reversed
constexpr std::uint32_t kMaskDelta = 0xA282EAD8u;

using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: the remainder of byte b followed by k zero bytes.
constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder & 1) != 0 ? (remainder >> 1) ^ kPolynomial : remainder >> 1;
    }
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = tables[0][before & 0xFF] ^ (before >> 8);
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kSlices = make_slices();

constexpr std::uint32_t step(std::uint32_t remainder, unsigned char byte) {
  return kSlices[0][(remainder ^ byte) & 0xFF] ^ (remainder >> 8);
}

std::uint32_t load_half(const char* from) {
  const auto byte = [from](int i) { return std::uint32_t{static_cast<unsigned char>(from[i])}; };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

std::uint32_t by_tables(const char* at, std::size_t size, std::uint32_t remainder) {
  for (; size >= 8; at += 8, size -= 8) {
    const std::uint32_t low = load_half(at) ^ remainder;
    const std::uint32_t high = load_half(at + 4);
    remainder = kSlices[7][low & 0xFF] ^ kSlices[6][low >> 8 & 0xFF] ^
                kSlices[5][low >> 16 & 0xFF] ^ kSlices[4][low >> 24] ^ kSlices[3][high & 0xFF] ^
                kSlices[2][high >> 8 & 0xFF] ^ kSlices[1][high >> 16 & 0xFF] ^
                kSlices[0][high >> 24];
  }
  for (; size > 0; ++at, --size) remainder = step(remainder, static_cast<unsigned char>(*at));
  return remainder;
}

#if defined(__x86_64__)
constexpr std::size_t kBlock = 1024;  // bytes; three of them are processed at once

// shift[k][b]: the remainder b << 8k after kBlock zero bytes.
constexpr std::array<Table, 4> make_shift() {
  std::array<std::uint32_t, 32> of_bit{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t remainder = 1u << bit;
    for (std::size_t i = 0; i < kBlock; ++i) remainder = step(remainder, 0);
    of_bit[bit] = remainder;
  }
  std::array<Table, 4> shift{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) shift[k][byte] ^= of_bit[8 * k + bit];
      }
    }
  }
  return shift;
}

std::uint64_t shifted(std::uint64_t remainder) {
  static constexpr std::array<Table, 4> kShift = make_shift();
  return kShift[0][remainder & 0xFF] ^ kShift[1][remainder >> 8 & 0xFF] ^
         kShift[2][remainder >> 16 & 0xFF] ^ kShift[3][remainder >> 24 & 0xFF];
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const char* at, std::size_t size,
                                                               std::uint32_t before) {
  const auto word = [](const char* from) {
    std::uint64_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  std::uint64_t remainder = before;
  for (; size >= 3 * kBlock; at += 3 * kBlock, size -= 3 * kBlock) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kBlock; i += 8) {
      remainder = _mm_crc32_u64(remainder, word(at + i));
      second = _mm_crc32_u64(second, word(at + kBlock + i));
      third = _mm_crc32_u64(third, word(at + 2 * kBlock + i));
    }
    remainder = shifted(shifted(remainder) ^ second) ^ third;
  }
  for (; size >= 8; at += 8, size -= 8) remainder = _mm_crc32_u64(remainder, word(at));
  auto narrow = static_cast<std::uint32_t>(remainder);
  for (; size > 0; ++at, --size) narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(*at));
  return narrow;
}
#endif

using Update = std::uint32_t (*)(const char* at, std::size_t size, std::uint32_t remainder);

Update fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return by_instruction;
#endif
  return by_tables;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t before) {
  static const Update update = fastest();
  return ~update(bytes.data(), bytes.size(), ~before);
}

std::uint32_t crc32c_by_tables(std::string_view bytes, std::uint32_t before) {
  return ~by_tables(bytes.data(), bytes.size(), ~before);
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

}  // namespace lockstep
