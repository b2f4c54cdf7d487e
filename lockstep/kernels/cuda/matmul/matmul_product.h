// A matrix product as passed to cuBLASLt. cuBLASLt is column-major and reads a row-major (m, k) as
// (k, m), so it is asked for yᵀ = bᵀ aᵀ, and nothing is transposed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/kernels/cuda/conv/conv_bias.h"
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/libraries/cublaslt.h"

namespace lockstep {

// A product (…, m, k) × (…, k, n) as cuBLASLt computes it.
struct MatmulProduct {
  std::int64_t batches = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t stride_a = 0;  // elements between matrices of the batch
  std::int64_t stride_b = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType dtype = DType::F32;
  bool tf32 = false;
  BiasActivation tail;       // bias and activation
  bool column_sums = false;  // also compute the column sums of b, (k, n)
  bool bits = false;         // also write the mask of the ReLU as bits
  bool masked = false;       // mask the result by such bits
  bool accumulates = false;  // is added to a third input,
  bool asks = false;         // if a fourth is not 0

  double operations() const {
    return 2.0 * static_cast<double>(batches * m) * static_cast<double>(n * k);
  }
  ColumnSum sums() const {  // for when cuBLASLt does not compute them
    return {.dtype = dtype, .result_dtype = dtype, .rows = k, .columns = n};
  }
  std::string name() const;  // in one line, unique per problem
};

MatmulProduct matmul_product_of(const KernelCall& call);

// Which parts of a product's tail an epilogue does.
inline bool adds_bias(cublasLtEpilogue_t epilogue) {
  return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}
inline bool is_relu(cublasLtEpilogue_t epilogue) {
  return (epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
}
inline bool activates(cublasLtEpilogue_t epilogue) {
  return is_relu(epilogue) || (epilogue & CUBLASLT_EPILOGUE_GELU) != 0;
}

// Whether it computes the column sums of b, which is cuBLASLt's first operand, A.
inline bool adds_columns(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BGRADA;
}

// Whether it writes or reads ReLU's mask; only an epilogue can do that.
inline bool writes_bits(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_RELU_AUX || epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS;
}
inline bool reads_bits(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_DRELU;
}

// The memory of a product's matrices.
struct MatmulPlaces {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* bias = nullptr;
  const std::byte* added = nullptr;  // to the product: y itself, or elsewhere
  std::byte* y = nullptr;
  std::byte* sums = nullptr;
  std::byte* bits = nullptr;  // written or read
};

// cuBLASLt's descriptors of a product with an epilogue: a is the second operand, b the first.
class MatmulDescriptors {
 public:
  MatmulDescriptors(CublasLt& library, const MatmulProduct& p, cublasLtEpilogue_t epilogue);
  ~MatmulDescriptors();
  MatmulDescriptors(const MatmulDescriptors&) = delete;
  MatmulDescriptors& operator=(const MatmulDescriptors&) = delete;

  // Sets the pointers that the epilogue reads and writes.
  void place_epilogue(const MatmulPlaces& places);
  // Algorithms for matrices aligned to `alignment` bytes, the likely fastest first.
  std::vector<MatmulChoice> suggestions(std::uint32_t alignment, std::size_t workspace_bytes,
                                        int most) const;
  // Whether an algorithm can compute this product; if so, its workspace size is filled in.
  bool accepts(MatmulChoice& choice) const;
  cublasStatus_t run(const MatmulChoice& choice, const MatmulPlaces& places, std::byte* workspace,
                     cudaStream_t stream) const;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, const T& value);
  cublasLtMatrixLayout_t matrix(const MatmulProduct& p, std::int64_t rows, std::int64_t columns,
                                std::int64_t stride) const;

  CublasLt& library_;
  cublasLtEpilogue_t epilogue_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr;
  cublasLtMatrixLayout_t b_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

}  // namespace lockstep
