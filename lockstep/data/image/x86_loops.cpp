#include "lockstep/data/image/x86_loops.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#define LOCKSTEP_AVX2 __attribute__((target("avx2")))
#define LOCKSTEP_AVX512 __attribute__((target("avx512f,avx512bw")))

namespace lockstep::x86 {

namespace {

constexpr int kShift = kWeightBits - kRowBits;

// Two adjacent weights as one 32-bit number.
inline int pair_of(const std::int16_t* weights) {
  int pair;
  std::memcpy(&pair, weights, sizeof pair);
  return pair;
}

// Whether two taps can be blended as first + (second - first) × weight: their weights sum to one,
// as for all filters, and neither is negative, so that 16 bits hold all intermediate values.
inline bool is_between(const std::int16_t* weights) {
  return weights[0] >= 0 && weights[1] >= 0 && weights[0] + weights[1] == 1 << kWeightBits;
}

// pmulhrsw multiplies by 2^-15 and rounds. For a difference of bytes shifted left by this, that
// equals the shift by kShift in the general loop: the results are bit-identical.
constexpr int kLeftShift = 15 - kShift;

LOCKSTEP_AVX2 inline __attribute__((always_inline)) void blend_between(const std::uint8_t* first,
                                                                       const std::uint8_t* second,
                                                                       __m256i weight,
                                                                       std::int16_t* out) {
  const __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
  const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(second)));
  const __m256i difference = _mm256_slli_epi16(_mm256_sub_epi16(b, a), kLeftShift);
  const __m256i blended =
      _mm256_add_epi16(_mm256_slli_epi16(a, kRowBits), _mm256_mulhrs_epi16(difference, weight));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), blended);
}

LOCKSTEP_AVX2 void blend_two_rows(const std::uint8_t* const* rows, const std::int16_t* weights,
                                  std::size_t count, std::int16_t* out) {
  const __m256i weight = _mm256_set1_epi16(weights[1]);
  const std::uint8_t* first = rows[0];
  const std::uint8_t* second = rows[1];
  for (std::size_t i = 0; i < count; i += 32) {
    blend_between(first + i, second + i, weight, out + i);
    blend_between(first + i + 16, second + i + 16, weight, out + i + 16);
  }
}

LOCKSTEP_AVX512 void blend_two_wide_rows(const std::uint8_t* const* rows,
                                         const std::int16_t* weights, std::size_t count,
                                         std::int16_t* out) {
  const __m512i weight = _mm512_set1_epi16(weights[1]);
  for (std::size_t i = 0; i < count; i += 32) {
    const __m512i a =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[0] + i)));
    const __m512i b =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[1] + i)));
    const __m512i difference = _mm512_slli_epi16(_mm512_sub_epi16(b, a), kLeftShift);
    const __m512i blended =
        _mm512_add_epi16(_mm512_slli_epi16(a, kRowBits), _mm512_mulhrs_epi16(difference, weight));
    _mm512_storeu_si512(out + i, blended);
  }
}

// kPairs: the number of pairs of taps if it is known at compile time, otherwise 0.
template <int kPairs>
LOCKSTEP_AVX2 void blend_rows_of(const std::uint8_t* const* rows, const std::int16_t* weights,
                                 int tap_pairs, std::size_t count, std::int16_t* out) {
  const int pairs = kPairs > 0 ? kPairs : tap_pairs;
  const __m256i half = _mm256_set1_epi32(1 << (kShift - 1));
  for (std::size_t i = 0; i < count; i += 16) {
    __m256i low = half;
    __m256i high = half;
    for (int k = 0; k < pairs; ++k) {
      const __m256i weight = _mm256_set1_epi32(pair_of(weights + 2 * k));
      const __m256i a =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[2 * k] + i)));
      const __m256i b = _mm256_cvtepu8_epi16(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[2 * k + 1] + i)));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
    }
    // Unpacking and packing both work within 128-bit lanes, so that the order is preserved.
    const __m256i blended =
        _mm256_packs_epi32(_mm256_srai_epi32(low, kShift), _mm256_srai_epi32(high, kShift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), blended);
  }
}

// GCC 12 warns about its own intrinsic for this.
LOCKSTEP_AVX512 inline __m512i shifted(__m512i sums) {
  typedef int Ints __attribute__((vector_size(64)));
  return reinterpret_cast<__m512i>(reinterpret_cast<Ints>(sums) >> kShift);
}

template <int kPairs>
LOCKSTEP_AVX512 void blend_wide_rows_of(const std::uint8_t* const* rows,
                                        const std::int16_t* weights, int tap_pairs,
                                        std::size_t count, std::int16_t* out) {
  const int pairs = kPairs > 0 ? kPairs : tap_pairs;
  const __m512i half = _mm512_set1_epi32(1 << (kShift - 1));
  for (std::size_t i = 0; i < count; i += 32) {
    __m512i low = half;
    __m512i high = half;
    for (int k = 0; k < pairs; ++k) {
      const __m512i weight = _mm512_set1_epi32(pair_of(weights + 2 * k));
      const __m512i a = _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[2 * k] + i)));
      const __m512i b = _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[2 * k + 1] + i)));
      low = _mm512_add_epi32(low, _mm512_madd_epi16(_mm512_unpacklo_epi16(a, b), weight));
      high = _mm512_add_epi32(high, _mm512_madd_epi16(_mm512_unpackhi_epi16(a, b), weight));
    }
    const __m512i blended = _mm512_packs_epi32(shifted(low), shifted(high));
    _mm512_storeu_si512(out + i, blended);
  }
}

// Two neighbouring outputs, one in each 128-bit lane.
template <int kPairs>
LOCKSTEP_AVX2 inline __attribute__((always_inline)) __m256 blend_two(const std::int16_t* row,
                                                                     const std::uint32_t* first,
                                                                     const std::int16_t* weights,
                                                                     int tap_pairs, __m256i bias,
                                                                     __m256 scale) {
  const int pairs = kPairs > 0 ? kPairs : tap_pairs;
  // Interleaves the channels of two pixels: r r' g g' b b' a a'.
  const __m256i pair_up = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0,
                                           1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const std::int16_t* a = row + first[0];
  const std::int16_t* b = row + first[1];
  __m256i sum = bias;
  for (int k = 0; k < pairs; ++k) {
    __m256i pixels =
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 8 * k)));
    pixels = _mm256_inserti128_si256(
        pixels, _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 8 * k)), 1);
    const __m256i weight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * k));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, pair_up), weight));
  }
  return _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
}

template <int kPairs, int kChannels>
LOCKSTEP_AVX2 void blend_columns_of(const std::int16_t* row, const FixedColumns& columns,
                                    const FixedAffine& affine, float* out) {
  const int pairs = kPairs > 0 ? kPairs : columns.tap_pairs();
  const int outputs = columns.outputs();
  const __m256i bias = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(affine.bias.data())));
  const __m256 scale = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(affine.scale.data()));
  const __m256i close_up = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 6, 6);
  const std::uint32_t* first = columns.first();
  const std::int16_t* weights = columns.weights();
  // Each store writes eight floats for two pixels. With three channels the next store overwrites
  // the last two of them, so the end of a row is stored separately.
  int i = 0;
  for (; i + 2 < outputs; i += 2, weights += 16 * pairs) {
    __m256 two = blend_two<kPairs>(row, first + i, weights, pairs, bias, scale);
    if (kChannels == 3) two = _mm256_permutevar8x32_ps(two, close_up);
    _mm256_storeu_ps(out + std::ptrdiff_t{i} * kChannels, two);
  }
  float last[8];
  _mm256_storeu_ps(last, blend_two<kPairs>(row, first + i, weights, pairs, bias, scale));
  for (int k = 0; i < outputs; ++i, k += 4) {
    for (int c = 0; c < kChannels; ++c) out[i * kChannels + c] = last[k + c];
  }
}

template <int kPairs>
void blend_columns_of(const std::int16_t* row, const FixedColumns& columns,
                      const FixedAffine& affine, int channels, float* out) {
  if (channels == 3) return blend_columns_of<kPairs, 3>(row, columns, affine, out);
  blend_columns_of<kPairs, 4>(row, columns, affine, out);
}

}  // namespace

void blend_rows_avx2(const std::uint8_t* const* rows, const std::int16_t* weights, int tap_pairs,
                     std::size_t count, std::int16_t* out) {
  if (tap_pairs == 1 && is_between(weights)) return blend_two_rows(rows, weights, count, out);
  if (tap_pairs == 1) return blend_rows_of<1>(rows, weights, tap_pairs, count, out);
  if (tap_pairs == 2) return blend_rows_of<2>(rows, weights, tap_pairs, count, out);
  blend_rows_of<0>(rows, weights, tap_pairs, count, out);
}

void blend_rows_avx512(const std::uint8_t* const* rows, const std::int16_t* weights, int tap_pairs,
                       std::size_t count, std::int16_t* out) {
  if (tap_pairs == 1 && is_between(weights)) return blend_two_wide_rows(rows, weights, count, out);
  if (tap_pairs == 1) return blend_wide_rows_of<1>(rows, weights, tap_pairs, count, out);
  if (tap_pairs == 2) return blend_wide_rows_of<2>(rows, weights, tap_pairs, count, out);
  blend_wide_rows_of<0>(rows, weights, tap_pairs, count, out);
}

void blend_columns_avx2(const std::int16_t* row, const FixedColumns& columns,
                        const FixedAffine& affine, int channels, float* out) {
  if (columns.tap_pairs() == 1) return blend_columns_of<1>(row, columns, affine, channels, out);
  if (columns.tap_pairs() == 2) return blend_columns_of<2>(row, columns, affine, channels, out);
  blend_columns_of<0>(row, columns, affine, channels, out);
}

}  // namespace lockstep::x86

#endif
