#include "lockstep/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

std::string noise(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

// One bit at a time, as the definition says.
std::uint32_t by_definition(std::string_view bytes) {
  std::uint32_t remainder = 0xFFFFFFFFu;
  for (const char byte : bytes) {
    remainder ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder & 1) != 0 ? (remainder >> 1) ^ 0x82F63B78u : remainder >> 1;
    }
  }
  return ~remainder;
}

TEST(Crc32c, UsesCastagnolisPolynomial) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  // From RFC 3720, B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(masked_crc32c(std::string(8, '\0')), 0x07980329u);
}

TEST(Crc32c, BothImplementationsFollowTheDefinitionForEveryLengthAndAlignment) {
  const std::string bytes = noise(10'000);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t size = 0; size < 9'900; size += size < 70 ? 1 : 509) {
      const std::string_view part = std::string_view(bytes).substr(begin, size);
      const std::uint32_t expected = by_definition(part);
      ASSERT_EQ(crc32c(part), expected) << begin << ", " << size;
      ASSERT_EQ(crc32c_by_tables(part), expected) << begin << ", " << size;
    }
  }
}

TEST(Crc32c, ContinuesFromTheChecksumOfAPrefix) {
  const std::string bytes = noise(7'000);
  const std::uint32_t whole = crc32c(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 333) {
    const std::string_view front = std::string_view(bytes).substr(0, cut);
    const std::string_view back = std::string_view(bytes).substr(cut);
    EXPECT_EQ(crc32c(back, crc32c(front)), whole);
    EXPECT_EQ(crc32c_by_tables(back, crc32c_by_tables(front)), whole);
  }
}

}  // namespace
}  // namespace lockstep
