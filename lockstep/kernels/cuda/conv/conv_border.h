// Brings images and filters into the form that libraries want: with a border of zeros, with more
// channels, or transposed. Memory is read and written once, along its rows.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {

// Adds a border of zeros to images (n, h, w, c), or removes it.
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

// Pads each row with zeros to `to_columns` elements, or truncates it; elements have 2 or 4 bytes.
void resize_rows(const void* from, void* to, std::int64_t rows, std::int64_t from_columns,
                 std::int64_t to_columns, std::size_t element_bytes, cudaStream_t stream);

// to (columns, rows) = from (rows, columns) transposed; elements have 2 or 4 bytes.
void transpose_matrix(const void* from, void* to, std::int64_t rows, std::int64_t columns,
                      std::size_t element_bytes, cudaStream_t stream);

}  // namespace lockstep
