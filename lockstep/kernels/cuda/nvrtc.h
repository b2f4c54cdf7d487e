// NVRTC on one GPU: kernels from source that is written while a plan is made. The library is opened
// at run time; compiled kernels are kept by their source, for as long as the process lives.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/device/cuda/runtime.h"

namespace lockstep {

class Nvrtc {
 public:
  // For a GPU, which is the calling thread's. UsageError where the library cannot be loaded.
  explicit Nvrtc(const Gpu& gpu);
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  // The kernel of this name (extern "C") in a source that includes nothing: to be launched with
  // cudaLaunchKernel, and ready at once. InternalError, with the compiler's words, where it does
  // not compile.
  const void* kernel(const std::string& source, const char* name);

 private:
  struct Library;
  std::string compile(const std::string& source) const;

  std::unique_ptr<Library> library_;
  std::string architecture_;
  std::mutex mutex_;  // of what was compiled
  std::map<std::string, const void*> kernels_;
};

}  // namespace lockstep
