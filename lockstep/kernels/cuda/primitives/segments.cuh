// Contiguous ranges (segments) of one or more adjacent values, split into pieces, one per block. A
// table of them is passed as a kernel parameter, so that one launch covers all parameters of a
// model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {

inline constexpr int kSegmentThreads = 256;
inline constexpr std::int64_t kPieceElements = 8192;
// With few elements, pieces become shorter, down to one vector per thread, until there are this
// many blocks.
inline constexpr std::int64_t kManyPieces = 528;  // four for each of 132 multiprocessors
inline constexpr std::int64_t kLeastPieceElements = 1024;
// The most pieces of a value whose norm is computed: a block adds up their sums, one per thread.
inline constexpr std::int64_t kMostNormPieces = kSegmentThreads;

// A contiguous range of elements that are updated in the same way. Slots that the update rule does
// not use are null.
template <class T>
struct Segment {
  T* parameter = nullptr;
  const T* gradient = nullptr;
  T* slots[3] = {};
  std::int64_t count = 0;
  std::int64_t piece = kPieceElements;  // elements of each piece but the last
  int first_piece = 0;                  // its number among the pieces of all ranges
  int pieces = 0;
  bool aligned = false;  // whether all pointers allow vector loads

  bool adjoins(const Segment& next) const {
    bool result = parameter + count == next.parameter && gradient + count == next.gradient;
    for (int i = 0; i < 3; ++i) {
      result = result && (slots[i] == nullptr || slots[i] + count == next.slots[i]);
    }
    return result;
  }
};

// The length of the pieces of a value whose norm is computed, and their number.
inline std::int64_t norm_piece(std::int64_t count) {
  const std::int64_t least = (count + kMostNormPieces - 1) / kMostNormPieces;
  return std::max<std::int64_t>(1, (least + kPieceElements - 1) / kPieceElements) * kPieceElements;
}
inline std::int64_t norm_pieces(std::int64_t count) {
  return (count + norm_piece(count) - 1) / norm_piece(count);
}

// As many ranges as fit into the parameters of any kernel.
template <class T>
struct SegmentTable {
  static constexpr int kMost = 48;
  Segment<T> segments[kMost];
  int count = 0;
  int first_piece = 0;
  int pieces = 0;  // of these ranges: blocks of a launch
};
static_assert(sizeof(SegmentTable<float>) < 3600);

// The length of pieces for so many elements, a power of two.
inline std::int64_t piece_for(std::int64_t elements) {
  std::int64_t piece = kPieceElements;
  while (piece > kLeastPieceElements && elements < piece * kManyPieces) piece /= 2;
  return piece;
}

// Splits ranges into pieces and fills as many tables as they need.
template <class T>
std::vector<SegmentTable<T>> make_tables(std::vector<Segment<T>> segments, bool for_norms) {
  std::vector<SegmentTable<T>> tables;
  int piece = 0;
  std::int64_t elements = 0;
  for (const Segment<T>& s : segments) elements += s.count;
  for (Segment<T>& s : segments) {
    s.piece = for_norms ? norm_piece(s.count) : piece_for(elements);
    s.first_piece = piece;
    s.pieces = static_cast<int>((s.count + s.piece - 1) / s.piece);
    s.aligned =
        all_on_vector_boundaries(s.parameter, s.gradient, s.slots[0], s.slots[1], s.slots[2]);
    if (tables.empty() || tables.back().count == SegmentTable<T>::kMost) {
      tables.emplace_back();
      tables.back().first_piece = piece;
    }
    SegmentTable<T>& table = tables.back();
    table.segments[table.count++] = s;
    table.pieces += s.pieces;
    piece += s.pieces;
  }
  return tables;
}

// The range that a piece belongs to: the last one that begins at it or before.
template <class T>
__device__ __forceinline__ const Segment<T>& segment_of(const SegmentTable<T>& table, int piece) {
  int low = 0;
  int high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.segments[middle].first_piece <= piece) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return table.segments[low];
}

// Calls f(index, width) for a thread's elements of a piece: in vectors if the range is aligned, and
// one by one at its end.
template <class T, class F>
__device__ __forceinline__ void for_each_in_piece(const Segment<T>& s, int piece, F&& f) {
  const std::int64_t begin = (piece - s.first_piece) * s.piece;
  const std::int64_t end = min(begin + s.piece, s.count);
  constexpr int kWidth = kVectorSize<T>;
  std::int64_t rest = begin;
  const int thread = static_cast<int>(threadIdx.x);
  if (s.aligned) {
    rest = begin + (end - begin) / kWidth * kWidth;
    for (std::int64_t i = begin + thread * kWidth; i < rest; i += kSegmentThreads * kWidth) {
      f(i, std::integral_constant<int, kWidth>{});
    }
  }
  for (std::int64_t i = rest + thread; i < end; i += kSegmentThreads) {
    f(i, std::integral_constant<int, 1>{});
  }
}

// The index of the first full vector that for_each_in_piece passes to this thread; -1 if none.
template <class T>
__device__ __forceinline__ std::int64_t first_vector(const Segment<T>& s, int piece) {
  const std::int64_t begin = (piece - s.first_piece) * s.piece;
  const std::int64_t at = begin + static_cast<int>(threadIdx.x) * kVectorSize<T>;
  return s.aligned && at + kVectorSize<T> <= min(begin + s.piece, s.count) ? at : -1;
}

// The sum over the threads of a block, returned to all of them.
__device__ inline double block_sum(double value) {
  __shared__ double warps[kSegmentThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[0];
#pragma unroll
  for (int i = 1; i < kSegmentThreads / 32; ++i) value += warps[i];
  __syncthreads();  // before the next
  return value;
}

}  // namespace lockstep
