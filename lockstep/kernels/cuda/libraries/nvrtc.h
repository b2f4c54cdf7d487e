// NVRTC on one GPU: kernels from source that is generated while a plan is built. The library is
// loaded at run time; compiled kernels are cached by source as long as the process lives.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/device/cuda/runtime.h"

namespace lockstep {

class Nvrtc {
 public:
  // For the calling thread's GPU. UsageError if the library cannot be loaded.
  explicit Nvrtc(const Gpu& gpu);
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  // The kernel of this name (extern "C") in a source without includes, already loaded: launch it
  // with cudaLaunchKernel. InternalError, with the compiler's log, if it does not compile.
  const void* kernel(const std::string& source, const char* name);

 private:
  struct Library;
  std::string compile(const std::string& source) const;

  std::unique_ptr<Library> library_;
  std::string architecture_;
  std::mutex mutex_;  // guards kernels_
  std::map<std::string, const void*> kernels_;
};

}  // namespace lockstep
