// What the kernels of conv_small_channels.h share: matrix products on tensor cores, and how a block
// loads its strips of the image.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "lockstep/kernels/cuda/conv/conv_small_channels.h"

namespace lockstep {

inline constexpr int kFewWarps = 4;
inline constexpr int kFewThreads = 32 * kFewWarps;
inline constexpr int kFewInPlace = 2;  // blocks per multiprocessor

// Addresses in shared memory, as the PTX instructions below take them.
__device__ __forceinline__ unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// Four matrices of 8 rows of 16 bytes; thread i passes the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}
// Two matrices; the first 16 threads pass the addresses.
__device__ __forceinline__ void load_transposed(unsigned (&to)[2], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(from));
}

// sums (16, 8) += a (16, 16) · b (16, 8).
__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1, __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies 16 bytes to shared memory asynchronously: `count` are read, the others become zeros.
__device__ __forceinline__ void fetch(unsigned to, const void* from, int count) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count)
               : "memory");
}
// Commits the copies since the last call as a group.
__device__ __forceinline__ void end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all copies of this thread.
__device__ __forceinline__ void await_fetched() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// Waits for all groups of this thread except the last kLeft.
template <int kLeft>
__device__ __forceinline__ void await_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Division of numbers below 2^16 by a constant, as a multiplication.
struct SmallDivisor {
  unsigned divisor;
  unsigned factor;

  __device__ explicit SmallDivisor(int d)
      : divisor(static_cast<unsigned>(d)), factor(0xffffffffu / divisor + 1) {}
  __device__ __forceinline__ int quotient(int x) const {
    return static_cast<int>(__umulhi(static_cast<unsigned>(x), factor));
  }
  __device__ __forceinline__ int rest(int x, int quotient) const {
    return x - quotient * static_cast<int>(divisor);
  }
};

// The position of a strip.
struct FewStrip {
  int n;
  int row, column;  // of its first result
  int y, x;         // of the first pixel of the first window, which may be outside the image

  __device__ FewStrip(const FewChannels& f, unsigned number) {
    const unsigned line = number / static_cast<unsigned>(f.across);
    column = static_cast<int>(number - line * static_cast<unsigned>(f.across)) * f.columns;
    n = static_cast<int>(line / static_cast<unsigned>(f.down));
    row = (static_cast<int>(line) - n * f.down) * f.rows;
    y = 2 * row - f.top;
    x = 2 * column - f.left;
  }
  // The index of its first result among all results.
  __device__ std::int64_t first(const FewChannels& f) const {
    return (static_cast<std::int64_t>(n) * f.oh + row) * f.ow + column;
  }
  __device__ int results(const FewChannels& f) const { return min(f.rows, f.oh - row) * f.columns; }
};

// A row of the image that a strip needs: the columns [first, last) that exist, and their offset.
struct FewRow {
  int first, last;
  bool empty;
  std::int64_t place;  // in bytes

  __device__ FewRow(const FewChannels& f, const FewStrip& s, int row) {
    const int y = s.y + row;
    first = max(s.x, 0);
    last = min(s.x + f.staged_pixels(), f.w);
    empty = y < 0 || y >= f.h || first >= last;
    place = (static_cast<std::int64_t>(s.n * f.h + y) * f.w + first) * (f.c * 2);
  }
  // Bytes between the 16-byte boundary at which the fetch begins and the row's first byte.
  __device__ int before() const { return static_cast<int>(place & 15); }
};

// Where a row of the image is fetched to.
template <class Byte>
__device__ __forceinline__ Byte* arrival(const FewChannels& f, Byte* raw, int row) {
  return raw + row * f.raw_pitch() + FewChannels::kBeside;
}

// A warp starts to fetch a row as stored in the image, from a 16-byte boundary on. If the image
// ends with less than 16 bytes, these are copied directly.
__device__ inline void fetch_row(const FewChannels& f, const FewStrip& s, int row,
                                 const std::uint8_t* image, std::uint8_t* raw) {
  const FewRow r(f, s, row);
  if (r.empty) return;
  const int bytes = r.before() + (r.last - r.first) * f.c * 2;
  const std::int64_t begin = r.place - r.before();
  const std::int64_t all = static_cast<std::int64_t>(f.n) * f.h * f.w * f.c * 2;
  const int left = static_cast<int>(min(all - begin, std::int64_t{1} << 20));
  std::uint8_t* to = arrival(f, raw, row);
  for (int i = static_cast<int>(threadIdx.x) % 32 * 16; i < bytes; i += 32 * 16) {
    if (left - i >= 16) {
      fetch(shared_address(to + i), image + begin + i, 16);
    } else {
      for (int k = i; k < left; k += 2) {
        *reinterpret_cast<std::uint16_t*>(to + k) =
            *reinterpret_cast<const std::uint16_t*>(image + begin + k);
      }
    }
  }
}

// Pixels of three channels, two at a time, without a branch, so that several loads are in flight.
// Up to 8 bytes before the row and 10 after it are loaded as well, and ignored.
__device__ __forceinline__ void stage_colours(const FewRow& r, int x0, int pairs,
                                              const std::uint8_t* from, uint4* to) {
  const unsigned row = shared_address(from);
#pragma unroll 4
  for (int pair = static_cast<int>(threadIdx.x) % 32; pair < pairs; pair += 32) {
    const int x = x0 + 2 * pair;
    const bool left = x >= r.first && x < r.last;
    const bool right = x + 1 >= r.first && x + 1 < r.last;
    const unsigned address = row + static_cast<unsigned>(left || right ? (x - r.first) * 6 : 0);
    const unsigned shift = (address & 2) * 8;
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"((address & ~3u) + 4 * i));
    }
    const unsigned a = __funnelshift_r(words[0], words[1], shift);
    const unsigned b = __funnelshift_r(words[1], words[2], shift);
    const unsigned c = __funnelshift_r(words[2], words[3], shift);
    to[pair] = make_uint4(left ? a : 0u, left ? b & 0xffffu : 0u,
                          right ? __byte_perm(b, c, 0x5432) : 0u, right ? c >> 16 : 0u);
  }
}

// The same for any number of channels.
__device__ __forceinline__ void stage_pixels(const FewRow& r, int x0, int pixels, int channels,
                                             const std::uint16_t* from, uint2* to) {
  for (int pixel = static_cast<int>(threadIdx.x) % 32; pixel < pixels; pixel += 32) {
    const int x = x0 + pixel;
    unsigned values[4] = {};
    if (x >= r.first && x < r.last) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < channels) values[i] = from[(x - r.first) * channels + i];
      }
    }
    to[pixel] = make_uint2(values[0] | values[1] << 16, values[2] | values[3] << 16);
  }
}

// A warp converts a row it has fetched to pixels of four channels; the copy must have completed.
__device__ inline void stage_row(const FewChannels& f, const FewStrip& s, int row,
                                 const std::uint8_t* raw, std::uint8_t* staged) {
  FewRow r(f, s, row);
  if (r.empty) r.first = r.last = 0;
  const std::uint8_t* from = arrival(f, raw, row) + r.before();
  std::uint8_t* to = staged + row * f.pitch();
  if (f.c == 3) {
    stage_colours(r, s.x, f.staged_pixels() / 2, from, reinterpret_cast<uint4*>(to));
  } else {
    stage_pixels(r, s.x, f.staged_pixels(), f.c, reinterpret_cast<const std::uint16_t*>(from),
                 reinterpret_cast<uint2*>(to));
  }
}

}  // namespace lockstep
