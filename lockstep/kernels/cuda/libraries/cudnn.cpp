#include "lockstep/kernels/cuda/libraries/cudnn.h"

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/kernels/cuda/libraries/cudnn_plan.h"

namespace lockstep {

Cudnn::Cudnn()
    : library("libcudnn.so.9",
              "install cuDNN 9 for CUDA 13, or add its folder to LD_LIBRARY_PATH") {
  library.find(create, "cudnnCreate");
  library.find(destroy, "cudnnDestroy");
  library.find(set_stream, "cudnnSetStream");
  library.find(get_version, "cudnnGetVersion");
  library.find(status_text, "cudnnGetErrorString");
  library.find(last_error, "cudnnGetLastErrorString");
  library.find(make_descriptor, "cudnnBackendCreateDescriptor");
  library.find(free_descriptor, "cudnnBackendDestroyDescriptor");
  library.find(set_attribute, "cudnnBackendSetAttribute");
  library.find(get_attribute, "cudnnBackendGetAttribute");
  library.find(finalize, "cudnnBackendFinalize");
  library.find(execute, "cudnnBackendExecute");
  check(create(&handle), "starting cuDNN");
  version = get_version();
}

Cudnn::~Cudnn() {
  plans.clear();
  if (handle != nullptr) destroy(handle);
}

void Cudnn::check(cudnnStatus_t status, const char* what) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fail<InternalError>("[cudnn] {}: {}", what, last_words(status));
}

std::string Cudnn::last_words(cudnnStatus_t status) const {
  std::array<char, 1024> message = {};
  last_error(message.data(), message.size() - 1);
  return fmt::format("{} ({})", status_text(status), message.data());
}

std::optional<std::string> Cudnn::last_refusal() {
  const std::lock_guard lock(mutex);
  return refusals.empty() ? std::nullopt : std::optional(refusals.back());
}

}  // namespace lockstep
