// The context of a GPU: its libraries, each loaded when a kernel first asks for it.
#include <algorithm>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/libraries/cublaslt.h"
#include "lockstep/kernels/cuda/libraries/cudnn.h"
#include "lockstep/kernels/cuda/libraries/nvrtc.h"
#include "lockstep/kernels/cuda/libraries/plan_cache.h"

namespace lockstep {

CudaContext::CudaContext(Device& device) : device_(device), gpu_(gpu_of(device)) {}

CudaContext::~CudaContext() = default;

CublasLt& CudaContext::cublaslt() {
  device_.make_current();
  const std::lock_guard lock(mutex_);
  if (cublaslt_ == nullptr) cublaslt_ = std::make_shared<CublasLt>();
  return *cublaslt_;
}

Cudnn& CudaContext::cudnn() {
  device_.make_current();
  const std::lock_guard lock(mutex_);
  if (cudnn_ == nullptr) cudnn_ = std::make_shared<Cudnn>();
  return *cudnn_;
}

Nvrtc& CudaContext::nvrtc() {
  device_.make_current();
  const std::lock_guard lock(mutex_);
  if (nvrtc_ == nullptr) nvrtc_ = std::make_shared<Nvrtc>(gpu_);
  return *nvrtc_;
}

void CudaContext::remark(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(remarks_, text) == remarks_.end()) remarks_.push_back(text);
}

std::vector<std::string> CudaContext::remarks() const {
  const std::lock_guard lock(mutex_);
  return remarks_;
}

PlanCache& CudaContext::plans() {
  const std::lock_guard lock(mutex_);
  if (plans_ == nullptr) plans_ = std::make_shared<PlanCache>(plan_cache_path);
  return *plans_;
}

}  // namespace lockstep
