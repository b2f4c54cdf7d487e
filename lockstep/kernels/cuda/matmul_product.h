// A matrix product as cuBLASLt is told of it. cuBLASLt thinks in columns: a row-major (m, k) is to
// it a (k, m), so that it is asked for yᵀ = bᵀ aᵀ, and nothing is moved.
#pragma once

#include <string>
#include <vector>

#include "lockstep/kernels/cuda/conv_bias.h"
#include "lockstep/kernels/cuda/cublaslt.h"
#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {

// A product (…, m, k) × (…, k, n) as cuBLASLt computes it.
struct MatmulProduct {
  std::int64_t batches = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t stride_a = 0;  // from one matrix of the batch to the next
  std::int64_t stride_b = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType dtype = DType::F32;
  bool tf32 = false;
  BiasSweep tail;            // what follows
  bool column_sums = false;  // wanted of b as well, (k, n)
  bool bits = false;         // wanted of ReLU behind it
  bool masked = false;       // by such bits

  double operations() const {
    return 2.0 * static_cast<double>(batches * m) * static_cast<double>(n * k);
  }
  ColumnSum sums() const {  // where cuBLASLt does not add them up
    return {.dtype = dtype, .result_dtype = dtype, .rows = k, .columns = n};
  }
  std::string name() const;  // on one line, different for different problems
};

MatmulProduct matmul_product_of(const KernelCall& call);

// What of a product's tail an epilogue does.
inline bool adds_bias(cublasLtEpilogue_t epilogue) {
  return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}
inline bool is_relu(cublasLtEpilogue_t epilogue) {
  return (epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
}
inline bool activates(cublasLtEpilogue_t epilogue) {
  return is_relu(epilogue) || (epilogue & CUBLASLT_EPILOGUE_GELU) != 0;
}

// Whether it adds up b's columns. (b is cuBLASLt's first operand, its A.)
inline bool adds_columns(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BGRADA;
}

// Whether it writes ReLU's mask, or reads one: an epilogue that is not ours to do without.
inline bool writes_bits(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_RELU_AUX || epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS;
}
inline bool reads_bits(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_DRELU;
}

// Where the matrices of a product lie.
struct MatmulPlaces {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* bias = nullptr;
  std::byte* y = nullptr;
  std::byte* sums = nullptr;
  std::byte* bits = nullptr;  // written or read
};

// A product with an epilogue in cuBLASLt's descriptors: a is its second operand, b its first.
class MatmulDescriptors {
 public:
  MatmulDescriptors(CublasLt& library, const MatmulProduct& p, cublasLtEpilogue_t epilogue);
  ~MatmulDescriptors();
  MatmulDescriptors(const MatmulDescriptors&) = delete;
  MatmulDescriptors& operator=(const MatmulDescriptors&) = delete;

  // Where what the epilogue reads and writes lies.
  void place_epilogue(const MatmulPlaces& places);
  // Algorithms for matrices that lie at multiples of `alignment` bytes, likely the fastest first.
  std::vector<MatmulChoice> suggestions(std::uint32_t alignment, std::size_t workspace_bytes,
                                        int most) const;
  // Whether an algorithm computes this product; its workspace is then filled in.
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
