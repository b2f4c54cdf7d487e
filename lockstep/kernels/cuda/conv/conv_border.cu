#include "lockstep/kernels/cuda/conv/conv_border.h"

#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;

bool is_wide(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(uint4) == 0;
}

// Add and remove a border with one block per row; `left` and the widths count units of type U.
template <class U>
__global__ void add_border_kernel(const U* image, U* padded, std::int64_t h, std::int64_t padded_h,
                                  std::int64_t width, std::int64_t padded_width, std::int64_t top,
                                  std::int64_t left) {
  const std::int64_t n = blockIdx.x / padded_h;
  const std::int64_t y = blockIdx.x % padded_h - top;
  const bool outside = y < 0 || y >= h;
  const U* from = image + (n * h + y) * width;  // not read if outside
  U* to = padded + blockIdx.x * padded_width;
  for (std::int64_t u = threadIdx.x; u < padded_width; u += blockDim.x) {
    const std::int64_t x = u - left;
    to[u] = outside || x < 0 || x >= width ? U{} : from[x];
  }
}

template <class U>
__global__ void remove_border_kernel(const U* padded, U* image, std::int64_t h,
                                     std::int64_t padded_h, std::int64_t width,
                                     std::int64_t padded_width, std::int64_t top,
                                     std::int64_t left) {
  const std::int64_t n = blockIdx.x / h;
  const std::int64_t y = blockIdx.x % h;
  const U* from = padded + (n * padded_h + y + top) * padded_width + left;
  U* to = image + blockIdx.x * width;
  for (std::int64_t u = threadIdx.x; u < width; u += blockDim.x) to[u] = from[u];
}

// Calls f with the type in which the rows of an image are copied and how many of it make a pixel.
template <class F>
void with_unit(const Border& border, const void* a, const void* b, F&& f) {
  const auto c = border.c;
  if (border.c * static_cast<std::int64_t>(border.element_bytes) % 16 == 0 && is_wide(a) &&
      is_wide(b)) {
    f(uint4{}, c * static_cast<std::int64_t>(border.element_bytes) / 16);
  } else if (border.element_bytes == 2) {
    f(std::uint16_t{}, c);
  } else {
    f(std::uint32_t{}, c);
  }
}

// One thread per row; V elements are written at once.
template <class U, int V>
__global__ void resize_rows_kernel(const U* from, U* to, std::int64_t rows, int from_columns,
                                   int to_columns) {
  struct alignas(sizeof(U) * V) Vector {
    U values[V];
  };
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  for (int first = 0; first < to_columns; first += V) {
    Vector vector;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int column = first + i;
      vector.values[i] = column < from_columns ? from[row * from_columns + column] : U{};
    }
    *reinterpret_cast<Vector*>(to + row * to_columns + first) = vector;
  }
}

template <class U>
void resize_rows_of(const void* from, void* to, std::int64_t rows, std::int64_t from_columns,
                    std::int64_t to_columns, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  const bool in_vectors = to_columns % 4 == 0 && is_wide(to);
  const auto kernel = in_vectors ? resize_rows_kernel<U, 4> : resize_rows_kernel<U, 1>;
  kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const U*>(from), static_cast<U*>(to), rows,
                                          static_cast<int>(from_columns),
                                          static_cast<int>(to_columns));
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;

// Through a tile in shared memory, so that both reads and writes are coalesced; its rows are padded
// by one element to avoid bank conflicts.
template <class U>
__global__ void transpose_kernel(const U* from, U* to, std::int64_t rows, std::int64_t columns) {
  __shared__ U tile[kTile][kTile + 1];
  const std::int64_t column0 = static_cast<std::int64_t>(blockIdx.x) * kTile;
  for (std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kTile; row0 < rows;
       row0 += static_cast<std::int64_t>(gridDim.y) * kTile) {
    for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kTileRows) {
      if (row0 + i < rows && column0 + threadIdx.x < columns) {
        tile[i][threadIdx.x] = from[(row0 + i) * columns + column0 + threadIdx.x];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kTileRows) {
      if (column0 + i < columns && row0 + threadIdx.x < rows) {
        to[(column0 + i) * rows + row0 + threadIdx.x] = tile[threadIdx.x][i];
      }
    }
    __syncthreads();
  }
}

template <class U>
void transpose_of(const void* from, void* to, std::int64_t rows, std::int64_t columns,
                  cudaStream_t stream) {
  const dim3 blocks(
      static_cast<unsigned>((columns + kTile - 1) / kTile),
      static_cast<unsigned>(std::min<std::int64_t>((rows + kTile - 1) / kTile, 65535)));
  transpose_kernel<U><<<blocks, dim3(kTile, kTileRows), 0, stream>>>(
      static_cast<const U*>(from), static_cast<U*>(to), rows, columns);
}

}  // namespace

void Border::add(const void* image, void* padded, cudaStream_t stream) const {
  const std::int64_t rows = n * padded_h();
  if (rows == 0 || padded_w() * c == 0) return;
  with_unit(*this, image, padded, [&](auto unit, std::int64_t pixel) {
    using U = decltype(unit);
    add_border_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        static_cast<const U*>(image), static_cast<U*>(padded), h, padded_h(), w * pixel,
        padded_w() * pixel, top, left * pixel);
  });
  check_launch("adding a border");
}

void Border::remove(const void* padded, void* image, cudaStream_t stream) const {
  const std::int64_t rows = n * h;
  if (rows == 0 || w * c == 0) return;
  with_unit(*this, padded, image, [&](auto unit, std::int64_t pixel) {
    using U = decltype(unit);
    remove_border_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        static_cast<const U*>(padded), static_cast<U*>(image), h, padded_h(), w * pixel,
        padded_w() * pixel, top, left * pixel);
  });
  check_launch("removing a border");
}

void resize_rows(const void* from, void* to, std::int64_t rows, std::int64_t from_columns,
                 std::int64_t to_columns, std::size_t element_bytes, cudaStream_t stream) {
  if (rows == 0 || to_columns == 0) return;
  if (element_bytes == 2) {
    resize_rows_of<std::uint16_t>(from, to, rows, from_columns, to_columns, stream);
  } else {
    resize_rows_of<std::uint32_t>(from, to, rows, from_columns, to_columns, stream);
  }
  check_launch("resizing rows");
}

void transpose_matrix(const void* from, void* to, std::int64_t rows, std::int64_t columns,
                      std::size_t element_bytes, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  if (element_bytes == 2) {
    transpose_of<std::uint16_t>(from, to, rows, columns, stream);
  } else {
    transpose_of<std::uint32_t>(from, to, rows, columns, stream);
  }
  check_launch("transposing a matrix");
}

}  // namespace lockstep
