// Matrix products by oneDNN's sgemm, followed by one pass for bias and activation while the result
// is still in the cache. On AVX2 oneDNN's matmul primitive is the same sgemm with more overhead.
// Row-major.
//
// If several threads share a product whose weights fit into their caches, each thread processes the
// same rows of the weights in every product that reads them, in the one that computes their
// gradient, and in the update (kernels/reference/update.cpp): no core waits for cache lines that
// another has changed. A product that sums over the rows of the weights becomes one partial sum per
// thread.
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/kernels/onednn/activation.h"
#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {
namespace {

// A product (…, m, k) × (…, k, n) as a sequence of sgemm calls.
struct Product {
  std::int64_t batches = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  bool transpose_a = false;
  bool transpose_b = false;
};

Product product_of(const KernelCall& call) {
  Product p;
  p.transpose_a = call.attrs().flag("transpose_a");
  p.transpose_b = call.attrs().flag("transpose_b");
  const Shape& a = call.in_shape(0);
  const Shape& b = call.in_shape(1);
  p.m = a[p.transpose_a ? -1 : -2];
  p.k = a[p.transpose_a ? -2 : -1];
  p.n = b[p.transpose_b ? -2 : -1];
  for (int axis = 0; axis + 2 < a.rank(); ++axis) p.batches *= a[axis];
  if (b.rank() == 2 && !p.transpose_a) {  // the same b for the whole batch: one tall product
    p.m *= p.batches;
    p.batches = 1;
  }
  p.stride_a = p.m * p.k;
  p.stride_b = b.rank() == 2 ? 0 : p.k * p.n;
  return p;
}

// The extent along which threads divide a product, so that each has rows of the weights. `Library`
// leaves it to oneDNN.
enum class Along { Library, M, N, K };

constexpr std::int64_t kWorthAThread = 1 << 17;  // multiplications
constexpr std::int64_t kFewestRows = 16;         // of the weights, per thread
constexpr std::int64_t kOwnCache = 1 << 18;      // weights: 1 MiB, the size of a core's cache
constexpr int kMostSums = 16;                    // of a product that is divided along K

Along along(const Product& p, int threads) {
  if (threads < 2 || p.batches > 1 || (p.transpose_a && p.transpose_b)) return Along::Library;
  const std::int64_t rows = p.transpose_a ? p.m : p.transpose_b ? p.n : p.k;
  const std::int64_t weights = rows * (p.transpose_b ? p.k : p.n);
  if (weights > threads * kOwnCache || rows < threads * kFewestRows ||
      p.m * p.n * p.k < threads * kWorthAThread) {
    return Along::Library;
  }
  if (p.transpose_a) return Along::M;
  if (p.transpose_b) return Along::N;
  // Writing and reading the partial sums must be cheap compared with reading the weights.
  return threads <= kMostSums && 4 * threads * p.m <= p.k ? Along::K : Along::Library;
}

// Partial sums besides the result itself, one for each thread except the first, for the largest
// number of threads that divides along K: at most a quarter of the weights.
std::int64_t max_extra_sums(const Product& p) {
  for (int threads = kMostSums; threads > 1; --threads) {
    if (along(p, threads) == Along::K) return threads - 1;
  }
  return 0;
}

// The part [begin, end) of one of a product's extents; rows of the result are p.n apart.
struct Part {
  Along extent = Along::Library;
  std::int64_t begin = 0, end = 0;
  bool adds = false;  // to what y holds
};

void multiply(const Product& p, const float* a, const float* b, float* y, const Part& part) {
  std::int64_t m = p.m, n = p.n, k = p.k;
  const std::int64_t row_a = p.transpose_a ? p.m : p.k;
  const std::int64_t row_b = p.transpose_b ? p.k : p.n;
  const std::int64_t count = part.end - part.begin;
  if (part.extent == Along::M) {
    m = count;
    a += part.begin * (p.transpose_a ? 1 : row_a);
    y += part.begin * p.n;
  } else if (part.extent == Along::N) {
    n = count;
    b += part.begin * (p.transpose_b ? row_b : 1);
    y += part.begin;
  } else if (part.extent == Along::K) {
    k = count;
    a += part.begin * (p.transpose_a ? row_a : 1);
    b += part.begin * (p.transpose_b ? 1 : row_b);
  }
  const dnnl_status_t status =
      dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, row_a, b,
                 row_b, part.adds ? 1.0f : 0.0f, y, p.n);
  ensure(status == dnnl_success, "oneDNN failed to compute a product of {} × {} × {}", m, k, n);
}

// y += the sums, in order.
void add_sums(float* y, const float* sums, std::int64_t count, std::int64_t elements) {
  for (std::int64_t s = 0; s < count; ++s) {
    const float* const sum = sums + s * elements;
#pragma omp simd
    for (std::int64_t i = 0; i < elements; ++i) y[i] += sum[i];
  }
}

// Each thread computes the part of the product for its rows of the weights.
void multiply_in_parts(const Product& p, const float* a, const float* b, float* y, float* sums,
                       Along extent, int threads, bool adds) {
  const std::int64_t whole = extent == Along::M ? p.m : extent == Along::N ? p.n : p.k;
  const std::int64_t elements = p.m * p.n;
  parallel_for(threads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const bool apart = extent == Along::K && t > 0;
      multiply(p, a, b, apart ? sums + (t - 1) * elements : y,
               {extent, whole * t / threads, whole * (t + 1) / threads, adds && !apart});
    }
  });
  if (extent == Along::K) add_sums(y, sums, threads - 1, elements);
}

// y = activation(y + bias), row by row; all rows at once if there is no bias.
struct Epilogue {
  ActivationLoops loops;
  float alpha = 0;

  void operator()(float* y, const float* bias, std::int64_t rows, std::int64_t n) const {
    if (bias == nullptr) {
      if (loops.value != nullptr) apply_in_parallel(loops, y, y, rows * n, alpha);
      return;
    }
    parallel_for(rows, 1 + (1 << 15) / (n + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) loops.biased(y + r * n, bias, n, alpha);
    });
  }
};

bool fuses(const KernelCall&, std::string_view) {
  return true;
}

bool supports(const KernelCall& call) {
  const bool extra =
      call.attrs().has("column_sums") || call.attrs().has("bits") || call.attrs().has("masked");
  return call.row_major() && f32_and_not_empty(call) && !extra;
}

// y becomes what a product is added to, unless it is that already.
void begin_with(const float* added, float* y, std::int64_t elements) {
  if (added == y) return;
  parallel_for(elements, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(y + begin, added + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  const Product p = product_of(call);
  const bool accumulating = call.attrs().has(kAccumulates);
  const bool asks = accumulating && call.in_count() > 3;
  const bool biased = call.in_count() > 2 && !accumulating;
  const Epilogue epilogue{
      activation_loops(call.attrs().text_or_empty("activation")),
      call.attrs().has("alpha") ? static_cast<float>(call.attrs().real("alpha")) : 0.0f};
  return make_kernel([=](const Binding& binding) {
    const auto* a = binding.in<float>(0);
    const auto* b = binding.in<float>(1);
    float* y = binding.out<float>(0);
    const bool adds = accumulating && (!asks || *binding.in<float>(3) != 0.0f);
    if (adds) begin_with(binding.in<float>(2), y, p.m * p.n);
    const int threads = threads_of_a_loop();
    const Along extent = along(p, threads);
    if (extent == Along::Library) {
      for (std::int64_t i = 0; i < p.batches; ++i) {
        multiply(p, a + i * p.stride_a, b + i * p.stride_b, y + i * p.m * p.n, {.adds = adds});
      }
    } else {
      multiply_in_parts(p, a, b, y, reinterpret_cast<float*>(binding.workspace), extent, threads,
                        adds);
    }
    epilogue(y, biased ? binding.in<float>(2) : nullptr, p.batches * p.m, p.n);
  });
}

std::size_t workspace(const KernelCall& call) {
  const Product p = product_of(call);
  return static_cast<std::size_t>(max_extra_sums(p) * p.m * p.n) * sizeof(float);
}

}  // namespace

void add_matmul(KernelLibrary& library) {
  library.add(Op::MatMul, {.name = "onednn.matmul",
                           .supports = supports,
                           .make = make,
                           .workspace_bytes = workspace,
                           .fuses_activation = fuses,
                           .offers = [](const KernelCall&, std::string_view extra) {
                             return extra == kAccumulates;
                           }});
}

}  // namespace lockstep::onednn
