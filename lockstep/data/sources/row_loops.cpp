// Uses AVX2 intrinsics, because compilers need several instructions to widen bytes. The results are
// bit-identical to those of the plain loops, which other machines run.
#include "lockstep/data/sources/row_loops.h"

#include <cstring>

#include "lockstep/base/vectorized.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep {
namespace {

// Prefetches the cache line at `offset` of the row ahead.
LOCKSTEP_INLINE void announce_line(RowAhead ahead, std::size_t offset) {
  if (offset < ahead.bytes) __builtin_prefetch(ahead.from + offset);
}

LOCKSTEP_VECTORIZED
void widen_plainly(const std::uint8_t* from, std::size_t count, float scale, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

LOCKSTEP_VECTORIZED
void widen_plainly(const std::uint8_t* from, std::size_t count, std::int32_t scale,
                   std::int32_t* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<std::int32_t>(from[i]) * scale;
}

#if defined(__x86_64__)

#define LOCKSTEP_AVX2 __attribute__((target("avx2")))

constexpr std::size_t kLanes = 8;

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

LOCKSTEP_AVX2 LOCKSTEP_INLINE __m256i eight(const std::uint8_t* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}

LOCKSTEP_AVX2 LOCKSTEP_INLINE void widen_eight(const std::uint8_t* from, __m256 scale, float* to) {
  _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(eight(from)), scale));
}

LOCKSTEP_AVX2 void widen_avx2(const std::uint8_t* from, std::size_t count, float scale, float* to,
                              RowAhead ahead) {
  const __m256 scales = _mm256_set1_ps(scale);
  std::size_t i = 0;
  for (; i + kCacheLine <= count; i += kCacheLine) {
    announce_line(ahead, i);
    for (std::size_t k = 0; k < kCacheLine; k += kLanes) {
      widen_eight(from + i + k, scales, to + i + k);
    }
  }
  announce_line(ahead, i);
  for (; i + kLanes <= count; i += kLanes) widen_eight(from + i, scales, to + i);
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

LOCKSTEP_AVX2 void copy_avx2(const std::byte* from, std::size_t bytes, std::byte* to,
                             RowAhead ahead) {
  std::size_t i = 0;
  for (; i + kCacheLine <= bytes; i += kCacheLine) {
    announce_line(ahead, i);
    std::memcpy(to + i, from + i, kCacheLine);
  }
  announce_line(ahead, i);
  std::memcpy(to + i, from + i, bytes - i);
}

#endif

}  // namespace

void copy_row(const std::byte* from, std::size_t bytes, std::byte* to, RowAhead ahead) {
#if defined(__x86_64__)
  // For longer rows memcpy is faster.
  if (bytes <= kMostAhead && has_avx2()) return copy_avx2(from, bytes, to, ahead);
#endif
  announce(ahead);
  std::memcpy(to, from, bytes);
}

void widen_row(const std::uint8_t* from, std::size_t count, float scale, float* to,
               RowAhead ahead) {
#if defined(__x86_64__)
  if (has_avx2()) return widen_avx2(from, count, scale, to, ahead);
#endif
  announce(ahead);
  widen_plainly(from, count, scale, to);
}

void widen_row(const std::uint8_t* from, std::size_t count, std::int32_t scale, std::int32_t* to,
               RowAhead ahead) {
  announce(ahead);
  widen_plainly(from, count, scale, to);
}

}  // namespace lockstep
