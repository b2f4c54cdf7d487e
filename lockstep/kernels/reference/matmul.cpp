// Matrix products, row by row of the result. Columns are processed in tiles that stay in registers
// and L1; short partial sums are added up in double, so that long inner dimensions keep their
// precision. Rows are independent: the number of threads does not change the result.
#include <algorithm>
#include <array>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/fused_activation.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTile = 128;   // columns
constexpr std::int64_t kPiece = 256;  // terms of a sum

struct Product {
  std::int64_t batches = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool one_b = false;  // the same right matrix for all batch elements
  bool bias = false;
  bool column_sums = false;  // also compute those of the right matrix
  bool bits = false;         // also write a mask of the positive results
  bool masked = false;
  std::int64_t mask_bytes = 0;  // per row
  bool accumulates = false;     // adds to a third input
  bool asks = false;            // if a fourth is not 0
};

Product product_of(const KernelCall& call) {
  const Shape& a = call.in_shape(0);
  Product p;
  p.transpose_a = call.attrs().flag("transpose_a");
  p.transpose_b = call.attrs().flag("transpose_b");
  for (int axis = 0; axis + 2 < a.rank(); ++axis) p.batches *= a[axis];
  p.m = a[p.transpose_a ? -1 : -2];
  p.k = a[p.transpose_a ? -2 : -1];
  p.n = call.out_shape(0)[-1];
  p.one_b = call.in_shape(1).rank() == 2;
  p.masked = call.attrs().has("masked");
  p.accumulates = call.attrs().has(kAccumulates);
  p.asks = p.accumulates && call.in_count() > 3;
  p.bias = call.in_count() > 2 && !p.masked && !p.accumulates;
  p.column_sums = call.attrs().has("column_sums");
  p.bits = call.attrs().has("bits");
  if (p.bits) p.mask_bytes = call.out_shape(1)[-1];
  if (p.masked) p.mask_bytes = call.in_shape(2)[-1];
  return p;
}

// totals[j] += sum over k of a[k * a_step] * b[k, j], for the columns of a tile.
template <class T>
void add_rows(const T* a, std::int64_t a_step, const T* b, std::int64_t b_step, std::int64_t k,
              std::int64_t columns, double* totals) {
  std::array<T, kTile> piece;
  for (std::int64_t begin = 0; begin < k; begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, k);
    std::fill_n(piece.begin(), columns, T(0));
    for (std::int64_t i = begin; i < end; ++i) {
      const T factor = a[i * a_step];
      const T* row = b + i * b_step;
      for (std::int64_t j = 0; j < columns; ++j)
        piece[static_cast<std::size_t>(j)] += factor * row[j];
    }
    for (std::int64_t j = 0; j < columns; ++j) totals[j] += piece[static_cast<std::size_t>(j)];
  }
}

// The dot product of a[i * a_step] and b[i].
template <class T>
double dot(const T* a, std::int64_t a_step, const T* b, std::int64_t k) {
  double total = 0;
  for (std::int64_t begin = 0; begin < k; begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, k);
    T piece = 0;
    if (a_step == 1) {
#pragma omp simd reduction(+ : piece)
      for (std::int64_t i = begin; i < end; ++i) piece += a[i] * b[i];
    } else {
      for (std::int64_t i = begin; i < end; ++i) piece += a[i * a_step] * b[i];
    }
    total += piece;
  }
  return total;
}

// `first`: what sums begin with, a row that may be y itself; null: zeros.
template <class T>
void multiply_row(const Product& p, const T* a, const T* b, const T* first, T* y) {
  const std::int64_t a_step = p.transpose_a ? p.m : 1;
  std::array<double, kTile> totals;
  for (std::int64_t begin = 0; begin < p.n; begin += kTile) {
    const std::int64_t columns = std::min(kTile, p.n - begin);
    for (std::int64_t j = 0; j < columns; ++j) {
      totals[static_cast<std::size_t>(j)] =
          first == nullptr ? 0.0 : static_cast<double>(first[begin + j]);
    }
    if (p.transpose_b) {
      for (std::int64_t j = 0; j < columns; ++j) {
        totals[static_cast<std::size_t>(j)] += dot(a, a_step, b + (begin + j) * p.k, p.k);
      }
    } else {
      add_rows(a, a_step, b + begin, p.n, p.k, columns, totals.data());
    }
    for (std::int64_t j = 0; j < columns; ++j)
      y[begin + j] = static_cast<T>(totals[static_cast<std::size_t>(j)]);
  }
}

// y[j] = the sum of b[:, j], with b (k, n).
template <class T>
void sum_columns(const Product& p, const T* b, T* y) {
  for (std::int64_t j = 0; j < p.n; ++j) {
    double total = 0;
    for (std::int64_t i = 0; i < p.k; ++i) total += static_cast<double>(b[i * p.n + j]);
    y[j] = static_cast<T>(total);
  }
}

// Bit j of a row's mask, lowest bit of a byte first, says whether y[j] is positive.
template <class T>
void write_mask(const T* y, std::int64_t n, std::uint8_t* mask, std::int64_t mask_bytes) {
  std::fill_n(mask, mask_bytes, std::uint8_t{0});
  for (std::int64_t j = 0; j < n; ++j) {
    if (y[j] > T(0)) mask[j / 8] |= static_cast<std::uint8_t>(1u << (j % 8));
  }
}

template <class T>
void apply_mask(T* y, std::int64_t n, const std::uint8_t* mask) {
  for (std::int64_t j = 0; j < n; ++j) {
    if ((mask[j / 8] >> (j % 8) & 1u) == 0) y[j] = T(0);
  }
}

template <class T>
std::unique_ptr<Kernel> make_matmul_of(const KernelCall& call) {
  return make_kernel([p = product_of(call),
                      activation = RowActivation<T>(call.attrs())](const Binding& binding) {
    const bool adds = p.accumulates && (!p.asks || *binding.in<float>(3) != 0.0F);
    parallel_for(p.batches * p.m, grain_for(p.n * p.k), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t batch = row / p.m;
        const std::int64_t i = row % p.m;
        const T* a = binding.in<T>(0) + batch * p.m * p.k + (p.transpose_a ? i : i * p.k);
        const T* b = binding.in<T>(1) + (p.one_b ? 0 : batch * p.k * p.n);
        T* y = binding.out<T>(0) + row * p.n;
        const T* const first = p.bias ? binding.in<T>(2)
                               : adds ? binding.in<T>(2) + row * p.n
                                      : nullptr;
        multiply_row(p, a, b, first, y);
        activation.apply(y, p.n);
        if (p.bits) {
          write_mask(y, p.n, binding.out<std::uint8_t>(1) + row * p.mask_bytes, p.mask_bytes);
        }
        if (p.masked) apply_mask(y, p.n, binding.in<std::uint8_t>(2) + row * p.mask_bytes);
      }
    });
    if (p.column_sums) sum_columns(p, binding.in<T>(1), binding.out<T>(1));
  });
}

std::unique_ptr<Kernel> make_matmul(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_matmul_of<decltype(zero)>(call); });
}

}  // namespace

void add_reference_matmul(KernelLibrary& library) {
  library.add(Op::MatMul,
              {.name = "reference.matmul",
               .supports = supports_floating,
               .make = make_matmul,
               .fuses_activation = [](const KernelCall&, std::string_view) { return true; },
               .offers =
                   [](const KernelCall& call, std::string_view extra) {
                     return extra == kAccumulates && is_f32_or_f64(call.in_dtype(0));
                   }});
}

}  // namespace lockstep
