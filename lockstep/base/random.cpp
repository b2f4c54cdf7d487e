#include "lockstep/base/random.h"

#include <cmath>
#include <numbers>

namespace lockstep {

std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001B3;
  return hash;
}

std::uint64_t combine(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a + 0x9E3779B97F4A7C15 * (b + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

PhiloxKey make_key(std::uint64_t seed, std::uint64_t stream) {
  const std::uint64_t mixed = combine(seed, stream);
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

std::uint32_t RandomSequence::next() {
  if (position_ % 4 == 0 || !has_block_) {
    const std::uint64_t block = position_ / 4;
    block_ = philox(
        key_, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0});
    has_block_ = true;
  }
  return block_[position_++ % 4];
}

float RandomSequence::uniform() {
  return to_unit_float(next());
}

double RandomSequence::normal() {
  const double u = (next() + 0.5) * 0x1p-32;
  const double v = next() * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

// Words at or above the last multiple of the bound would favour small numbers and are drawn again.
std::uint64_t RandomSequence::below(std::uint64_t bound) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  for (;;) {
    const std::uint64_t high = next();
    const std::uint64_t word = high << 32 | next();
    // The last multiple is above kMost - bound, so smaller words pass without computing it.
    if (word < kMost - bound || word < kMost - kMost % bound) return word % bound;
  }
}

}  // namespace lockstep
