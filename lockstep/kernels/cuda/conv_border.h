// Images and filters as libraries want them: with a border of zeros, with more channels, and
// transposed. Memory is read and written once, along its rows.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {

// Zeros around images (n, h, w, c), or away with such a border.
struct Border {
  std::int64_t n = 0;
  std::int64_t h = 0;
  std::int64_t w = 0;
  std::int64_t c = 0;
  std::int64_t top = 0;
  std::int64_t bottom = 0;
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::size_t element_bytes = 4;  // 2 or 4

  std::int64_t padded_h() const { return top + h + bottom; }
  std::int64_t padded_w() const { return left + w + right; }
  std::size_t padded_bytes() const {
    return static_cast<std::size_t>(n * padded_h() * padded_w() * c) * element_bytes;
  }
  void add(const void* image, void* padded, cudaStream_t stream) const;
  void remove(const void* padded, void* image, cudaStream_t stream) const;
};

// Rows of elements of 2 or 4 bytes, each with zeros behind it up to `to_columns`, or, where those
// are fewer, cut off.
void resize_rows(const void* from, void* to, std::int64_t rows, std::int64_t from_columns,
                 std::int64_t to_columns, std::size_t element_bytes, cudaStream_t stream);

// to (columns, rows) = transposed from (rows, columns), of elements of 2 or 4 bytes.
void transpose_matrix(const void* from, void* to, std::int64_t rows, std::int64_t columns,
                      std::size_t element_bytes, cudaStream_t stream);

}  // namespace lockstep
