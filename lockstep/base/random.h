// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011). A number depends only on its key and counter, so every thread, replica and
// machine can draw any number in any order, and all agree.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

struct PhiloxKey {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};

using PhiloxBlock = std::array<std::uint32_t, 4>;

// Four random words for a key and a 128-bit counter.
inline PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key.low, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key.high, static_cast<std::uint32_t>(a)};
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  return counter;
}

// A word as a float in [0, 1), from its upper 24 bits.
inline float to_unit_float(std::uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

// A stable 64-bit hash (FNV-1a) of a name: turns "dense_1/kernel" into part of a key.
std::uint64_t hash_name(std::string_view name);

// Mixes words into one (SplitMix64's finaliser): combine(seed, epoch), and so on.
std::uint64_t combine(std::uint64_t a, std::uint64_t b);

// The key for a seed and the stream of numbers drawn under it.
PhiloxKey make_key(std::uint64_t seed, std::uint64_t stream);

// A sequence drawn from one key: for host-side work such as initialisers and shuffles. Its whole
// state is `position`, which can be saved and set.
class RandomSequence {
 public:
  RandomSequence(std::uint64_t seed, std::uint64_t stream) : key_(make_key(seed, stream)) {}

  std::uint32_t next();
  float uniform();                           // [0, 1)
  double normal();                           // mean 0, deviation 1 (Box-Muller)
  std::uint64_t below(std::uint64_t bound);  // unbiased, bound > 0
  std::uint64_t position() const { return position_; }
  void seek(std::uint64_t position) {
    position_ = position;
    has_block_ = false;
  }

 private:
  PhiloxKey key_;
  std::uint64_t position_ = 0;  // words drawn so far
  PhiloxBlock block_{};         // the four words around `position_`,
  bool has_block_ = false;      // once they are computed
};

}  // namespace lockstep
