#include "lockstep/kernels/cuda/libraries/cublaslt.h"

#include "lockstep/base/error.h"

namespace lockstep {

CublasLt::CublasLt()
    : library("libcublasLt.so.13",
              "install cuBLAS for CUDA 13, or add its folder to LD_LIBRARY_PATH") {
  library.find(create, "cublasLtCreate");
  library.find(destroy, "cublasLtDestroy");
  library.find(get_version, "cublasLtGetVersion");
  library.find(status_text, "cublasLtGetStatusString");
  library.find(make_product, "cublasLtMatmulDescCreate");
  library.find(free_product, "cublasLtMatmulDescDestroy");
  library.find(set_product, "cublasLtMatmulDescSetAttribute");
  library.find(make_matrix, "cublasLtMatrixLayoutCreate");
  library.find(free_matrix, "cublasLtMatrixLayoutDestroy");
  library.find(set_matrix, "cublasLtMatrixLayoutSetAttribute");
  library.find(make_preference, "cublasLtMatmulPreferenceCreate");
  library.find(free_preference, "cublasLtMatmulPreferenceDestroy");
  library.find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
  library.find(suggest, "cublasLtMatmulAlgoGetHeuristic");
  library.find(check_algorithm, "cublasLtMatmulAlgoCheck");
  library.find(multiply, "cublasLtMatmul");
  check(create(&handle), "starting cuBLASLt");
  version = get_version();
}

CublasLt::~CublasLt() {
  if (handle != nullptr) destroy(handle);
}

void CublasLt::check(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail<InternalError>("[cublaslt] {}: {}", what, status_text(status));
}

}  // namespace lockstep
