// Dropout: the mask is drawn from Philox where it is applied, and never stored. Sixteen blocks of
// four words are drawn side by side, so that the rounds can run in vector registers.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/random.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kBlocks = 16;                       // drawn together
constexpr std::int64_t kWords = std::int64_t{4} * kBlocks;  // numbers in them

// Writes the words of the blocks whose counters are first, first + 1, … in the lowest word.
using DrawBlocks = void (*)(PhiloxKey key, const PhiloxBlock& first, std::uint32_t* words);

void draw_blocks(PhiloxKey key, const PhiloxBlock& first, std::uint32_t* words) {
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    const PhiloxBlock block = philox(key, {first[0] + i, first[1], first[2], first[3]});
    std::copy(block.begin(), block.end(), words + 4 * i);
  }
}

#if defined(__x86_64__)
// The same, four blocks to a vector. A word of the counter lies in the low half of a 64-bit lane;
// the widening product reads only that half, so that what gathers in the other does no harm.
__attribute__((target("avx2"))) void draw_blocks_avx2(PhiloxKey key, const PhiloxBlock& first,
                                                      std::uint32_t* words) {
  constexpr std::size_t kVectors = kBlocks / 4;
  const __m256i by_a = _mm256_set1_epi64x(0xD2511F53);
  const __m256i by_b = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    const auto begin = static_cast<std::int64_t>(first[0] + 4 * v);
    c0[v] = _mm256_add_epi64(_mm256_set1_epi64x(begin), _mm256_set_epi64x(3, 2, 1, 0));
    c1[v] = _mm256_set1_epi64x(first[1]);
    c2[v] = _mm256_set1_epi64x(first[2]);
    c3[v] = _mm256_set1_epi64x(first[3]);
  }
  for (int round = 0; round < 10; ++round) {
    const __m256i low = _mm256_set1_epi64x(key.low);
    const __m256i high = _mm256_set1_epi64x(key.high);
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m256i a = _mm256_mul_epu32(by_a, c0[v]);
      const __m256i b = _mm256_mul_epu32(by_b, c2[v]);
      c0[v] = _mm256_xor_si256(_mm256_srli_epi64(b, 32), _mm256_xor_si256(c1[v], low));
      c1[v] = b;
      c2[v] = _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(c3[v], high));
      c3[v] = a;
    }
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    // (c0, c1) and (c2, c3) of each block side by side, then the blocks in their order.
    const __m256i front = _mm256_blend_epi32(c0[v], _mm256_slli_epi64(c1[v], 32), 0xAA);
    const __m256i back = _mm256_blend_epi32(c2[v], _mm256_slli_epi64(c3[v], 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(front, back);
    const __m256i odd = _mm256_unpackhi_epi64(front, back);
    auto* target = reinterpret_cast<__m256i*>(words + 16 * v);
    _mm256_storeu_si256(target, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(target + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

DrawBlocks fastest_draw() {
  return __builtin_cpu_supports("avx2") ? draw_blocks_avx2 : draw_blocks;
}
#else
DrawBlocks fastest_draw() {
  return draw_blocks;
}
#endif

struct Mask {
  std::int64_t samples = 0;
  std::int64_t size = 0;  // elements of a sample
  PhiloxKey key;
  // to_unit_float(word) < rate, said of the word's upper 24 bits.
  std::int32_t threshold = 0;
  double scale = 1;
  DrawBlocks draw = draw_blocks;
};

Mask mask_of(const KernelCall& call) {
  const Shape& shape = call.in_shape(0);
  const double rate = call.attrs().real("rate");
  Mask mask;
  mask.samples = shape[0];
  mask.size = shape[0] == 0 ? 0 : shape.elements() / shape[0];
  mask.key = make_key(static_cast<std::uint64_t>(call.attrs().integer("seed")),
                      static_cast<std::uint64_t>(call.attrs().integer("key")));
  mask.threshold = static_cast<std::int32_t>(std::ceil(rate * 16777216.0));
  mask.scale = 1.0 / (1.0 - rate);
  mask.draw = fastest_draw();
  return mask;
}

// Elements [begin, end) of one sample; begin is a multiple of kWords.
template <class T>
void drop(const Mask& mask, PhiloxBlock counter, const T* x, T* y, std::int64_t begin,
          std::int64_t end) {
  const T scale = static_cast<T>(mask.scale);
  const std::int32_t threshold = mask.threshold;
  std::array<std::uint32_t, static_cast<std::size_t>(kWords)> words;
  for (std::int64_t at = begin; at < end; at += kWords) {
    counter[0] = static_cast<std::uint32_t>(at / 4);
    mask.draw(mask.key, counter, words.data());
    const std::int64_t count = std::min(kWords, end - at);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<std::int32_t>(words[static_cast<std::size_t>(i)] >> 8);
      // Computed in either case, so that there is no branch to guess.
      const T kept = x[at + i] * scale;
      y[at + i] = number < threshold ? T(0) : kept;
    }
  }
}

template <class T>
std::unique_ptr<Kernel> make_dropout_of(const KernelCall& call) {
  return make_kernel([mask = mask_of(call)](const Binding& binding) {
    const auto step = static_cast<std::uint64_t>(binding.in<std::int64_t>(1)[0]);
    const std::int64_t first = binding.in<std::int64_t>(1)[1];
    // Pieces of kWords elements, so that few large samples are shared out as well as many small.
    const std::int64_t pieces = (mask.size + kWords - 1) / kWords;
    parallel_for(mask.samples * pieces, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t sample = piece / pieces;
        const std::int64_t at = piece % pieces * kWords;
        const PhiloxBlock counter{0, static_cast<std::uint32_t>(first + sample),
                                  static_cast<std::uint32_t>(step),
                                  static_cast<std::uint32_t>(step >> 32)};
        drop(mask, counter, binding.in<T>(0) + sample * mask.size,
             binding.out<T>(0) + sample * mask.size, at, std::min(at + kWords, mask.size));
      }
    });
  });
}

std::unique_ptr<Kernel> make_dropout(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_dropout_of<decltype(zero)>(call); });
}

}  // namespace

void add_reference_random(KernelLibrary& library) {
  library.add(Op::Dropout,
              {.name = "reference.dropout", .supports = supports_floating, .make = make_dropout});
}

}  // namespace lockstep
