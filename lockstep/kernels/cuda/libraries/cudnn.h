// cuDNN on one GPU: its graph functions, looked up at run time, its handle, and the plans built
// with it (cudnn_plan.h).
#pragma once

#include <cudnn_graph.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/device/cuda/dynamic_library.h"

namespace lockstep {

class CudnnPlan;

struct Cudnn {
  // For the calling thread's GPU. UsageError if the library cannot be loaded.
  Cudnn();
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  // InternalError, naming the call, if cuDNN reports an error.
  void check(cudnnStatus_t status, const char* what) const;
  // cuDNN's message about the last call that failed.
  std::string last_words(cudnnStatus_t status) const;
  // The last problem for which cuDNN had no plan, and why; nothing if there was none. Locks
  // `mutex`.
  std::optional<std::string> last_refusal();

  DynamicLibrary library;
  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnDestroy) destroy = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnGetVersion) get_version = nullptr;
  decltype(&::cudnnGetErrorString) status_text = nullptr;
  decltype(&::cudnnGetLastErrorString) last_error = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) make_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) free_descriptor = nullptr;
  decltype(&::cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;

  cudnnHandle_t handle = nullptr;  // for one thread at a time
  std::size_t version = 0;
  std::mutex mutex;                                               // guards the members below
  std::map<std::string, std::shared_ptr<const CudnnPlan>> plans;  // by problem; null: no plan
  std::vector<std::string> refusals;  // problems for which cuDNN has no plan, and why
};

}  // namespace lockstep
