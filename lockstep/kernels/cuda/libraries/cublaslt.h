// cuBLASLt on one GPU: its functions, looked up at run time, its handle, and the algorithms chosen
// for matrix products.
#pragma once

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <string>

#include "lockstep/device/cuda/dynamic_library.h"

namespace lockstep {

// How a matrix product is computed: the algorithm, and the epilogue that it fuses.
struct MatmulChoice {
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cublasLtMatmulAlgo_t algorithm = {};
  std::size_t workspace_bytes = 0;
};

struct CublasLt {
  // For the calling thread's GPU. UsageError if the library cannot be loaded.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // InternalError, naming the call, if cuBLASLt reports an error.
  void check(cublasStatus_t status, const char* what) const;

  DynamicLibrary library;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusString) status_text = nullptr;
  decltype(&::cublasLtMatmulDescCreate) make_product = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) free_product = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) make_matrix = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) free_matrix = nullptr;
  decltype(&::cublasLtMatrixLayoutSetAttribute) set_matrix = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) free_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) suggest = nullptr;
  decltype(&::cublasLtMatmulAlgoCheck) check_algorithm = nullptr;
  decltype(&::cublasLtMatmul) multiply = nullptr;

  cublasLtHandle_t handle = nullptr;
  std::size_t version = 0;
  std::mutex mutex;  // guards `chosen`
  std::map<std::string, MatmulChoice> chosen;
};

}  // namespace lockstep
