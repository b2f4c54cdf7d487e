#include "lockstep/kernels/cuda/matmul/matmul_product.h"

#include "lockstep/graph/ops/matmul.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kLikelyAlignment = 16;  // bytes, of a bias that is not bound yet

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::F16) return CUDA_R_16F;
  return dtype == DType::BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

}  // namespace

MatmulProduct matmul_product_of(const KernelCall& call) {
  MatmulProduct p;
  p.dtype = call.in_dtype(0);
  p.tf32 = p.dtype == DType::F32 && cuda_context(call).allow_tf32;
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
  p.tail.dtype = p.dtype;
  p.bits = call.attrs().has("bits");
  p.masked = call.attrs().has("masked");
  p.accumulates = call.attrs().has(kAccumulates);
  p.asks = p.accumulates && call.in_count() > 3;
  p.tail.biased = call.in_count() > 2 && !p.masked && !p.accumulates;
  if (p.tail.biased) p.tail.bias_dtype = call.in_dtype(2);
  p.tail.activation = cuda_activation(call.attrs().text_or_empty("activation"));
  p.tail.alpha = call.attrs().has("alpha") ? static_cast<float>(call.attrs().real("alpha")) : 0.0f;
  p.tail.rows = p.batches * p.m;
  p.tail.columns = p.n;
  p.column_sums = call.attrs().has("column_sums");
  return p;
}

std::string MatmulProduct::name() const {
  return fmt::format("matmul {}{} {} × ({}{}, {}, {}{}) bias {} activation {}", name_of(dtype),
                     tf32 ? " tf32" : "", batches, m, transpose_a ? "ᵀ" : "", k, n,
                     transpose_b ? "ᵀ" : "", tail.biased ? name_of(tail.bias_dtype) : "none",
                     static_cast<int>(tail.activation)) +
         (stride_b == 0 && batches > 1 ? " one b" : "") + (column_sums ? " column sums" : "") +
         (bits ? " bits" : "") + (masked ? " masked" : "") + (accumulates ? " accumulates" : "");
}

template <class T>
void MatmulDescriptors::set(cublasLtMatmulDescAttributes_t name, const T& value) {
  library_.check(library_.set_product(product_, name, &value, sizeof(value)),
                 "describing a product");
}

MatmulDescriptors::MatmulDescriptors(CublasLt& library, const MatmulProduct& p,
                                     cublasLtEpilogue_t epilogue)
    : library_(library), epilogue_(epilogue) {
  const cublasComputeType_t compute = p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  library_.check(library_.make_product(&product_, compute, CUDA_R_32F), "describing a product");
  set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (adds_bias(epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.tail.bias_dtype));
  }
  if (adds_columns(epilogue)) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.dtype));
  auto* const somewhere = reinterpret_cast<std::byte*>(std::uintptr_t{kLikelyAlignment});
  place_epilogue({.bias = somewhere, .sums = somewhere, .bits = somewhere});  // never read
  if (writes_bits(epilogue) || reads_bits(epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (p.n + 127) / 128 * 128);
  }
  a_ = p.transpose_a ? matrix(p, p.m, p.k, p.stride_a) : matrix(p, p.k, p.m, p.stride_a);
  b_ = p.transpose_b ? matrix(p, p.k, p.n, p.stride_b) : matrix(p, p.n, p.k, p.stride_b);
  y_ = matrix(p, p.n, p.m, p.m * p.n);
}

MatmulDescriptors::~MatmulDescriptors() {
  for (cublasLtMatrixLayout_t matrix : {a_, b_, y_}) {
    if (matrix != nullptr) library_.free_matrix(matrix);
  }
  if (product_ != nullptr) library_.free_product(product_);
}

void MatmulDescriptors::place_epilogue(const MatmulPlaces& places) {
  const void* const bias = places.bias;
  const void* const sums = places.sums;
  if (adds_bias(epilogue_)) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (adds_columns(epilogue_)) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums);
  if (writes_bits(epilogue_) || reads_bits(epilogue_)) {
    void* const bits = places.bits;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, bits);
  }
}

std::vector<MatmulChoice> MatmulDescriptors::suggestions(std::uint32_t alignment,
                                                         std::size_t workspace_bytes,
                                                         int most) const {
  cublasLtMatmulPreference_t preference = nullptr;
  library_.check(library_.make_preference(&preference), "describing a preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    library_.check(library_.set_preference(preference, name, &value, sizeof(value)),
                   "setting a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(name, alignment);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status = library_.suggest(library_.handle, product_, b_, a_, y_, y_,
                                                 preference, most, results.data(), &count);
  library_.free_preference(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<MatmulChoice> list;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    list.push_back({epilogue_, result.algo, result.workspaceSize});
  }
  return list;
}

bool MatmulDescriptors::accepts(MatmulChoice& choice) const {
  cublasLtMatmulHeuristicResult_t result = {};
  if (library_.check_algorithm(library_.handle, product_, b_, a_, y_, y_, &choice.algorithm,
                               &result) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  choice.workspace_bytes = result.workspaceSize;
  return true;
}

cublasStatus_t MatmulDescriptors::run(const MatmulChoice& choice, const MatmulPlaces& places,
                                      std::byte* workspace, cudaStream_t stream) const {
  const float one = 1.0f;
  const float zero = 0.0f;
  const bool adds = places.added != nullptr;
  return library_.multiply(library_.handle, product_, &one, places.b, b_, places.a, a_,
                           adds ? &one : &zero, adds ? places.added : places.y, y_, places.y, y_,
                           &choice.algorithm, workspace, choice.workspace_bytes, stream);
}

// The layout of a matrix with so many rows and columns (column-major), one per batch element.
cublasLtMatrixLayout_t MatmulDescriptors::matrix(const MatmulProduct& p, std::int64_t rows,
                                                 std::int64_t columns, std::int64_t stride) const {
  cublasLtMatrixLayout_t made = nullptr;
  library_.check(library_.make_matrix(&made, cuda_type(p.dtype), static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), rows),
                 "describing a matrix");
  if (p.batches > 1) {
    const auto batches = static_cast<std::int32_t>(p.batches);
    library_.check(
        library_.set_matrix(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof(batches)),
        "describing a batch");
    library_.check(library_.set_matrix(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                       sizeof(stride)),
                   "describing a batch");
  }
  return made;
}

}  // namespace lockstep
