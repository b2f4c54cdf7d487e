// Matrix products by oneDNN's sgemm, with bias and activation in one sweep behind it while the
// result is still in the cache. On AVX2 its matmul primitive is this same sgemm with more overhead
// around it. Row-major.
#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/onednn/activation.h"
#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {
namespace {

// A product (…, m, k) × (…, k, n) as the calls of sgemm that it takes.
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
  if (b.rank() == 2 && !p.transpose_a) {  // one matrix for all rows: one tall product
    p.m *= p.batches;
    p.batches = 1;
  }
  p.stride_a = p.m * p.k;
  p.stride_b = b.rank() == 2 ? 0 : p.k * p.n;
  return p;
}

// y = activation(y + bias), row by row; all rows at once where there is no bias.
struct Epilogue {
  ActivationSweeps sweeps;
  float alpha = 0;

  void operator()(float* y, const float* bias, std::int64_t rows, std::int64_t n) const {
    if (bias == nullptr) {
      if (sweeps.value != nullptr) sweep_in_parallel(sweeps, y, y, rows * n, alpha);
      return;
    }
    parallel_for(rows, 1 + (1 << 15) / (n + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) sweeps.biased(y + r * n, bias, n, alpha);
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

std::unique_ptr<Kernel> make(const KernelCall& call) {
  const Product p = product_of(call);
  const bool biased = call.in_count() > 2;
  const Epilogue epilogue{
      activation_sweeps(call.attrs().text_or_empty("activation")),
      call.attrs().has("alpha") ? static_cast<float>(call.attrs().real("alpha")) : 0.0f};
  return make_kernel([=](const Binding& binding) {
    float* y = binding.out<float>(0);
    for (std::int64_t i = 0; i < p.batches; ++i) {
      const dnnl_status_t status =
          dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f,
                     binding.in<float>(0) + i * p.stride_a, p.transpose_a ? p.m : p.k,
                     binding.in<float>(1) + i * p.stride_b, p.transpose_b ? p.k : p.n, 0.0f,
                     y + i * p.m * p.n, p.n);
      ensure(status == dnnl_success, "oneDNN refused a product of {} × {} × {}", p.m, p.k, p.n);
    }
    epilogue(y, biased ? binding.in<float>(2) : nullptr, p.batches * p.m, p.n);
  });
}

}  // namespace

void add_matmul(KernelLibrary& library) {
  library.add(
      Op::MatMul,
      {.name = "onednn.matmul", .supports = supports, .make = make, .fuses_activation = fuses});
}

}  // namespace lockstep::onednn
