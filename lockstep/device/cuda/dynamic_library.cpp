#include "lockstep/device/cuda/dynamic_library.h"

#include <dlfcn.h>

#include "lockstep/base/error.h"

namespace lockstep {

DynamicLibrary::DynamicLibrary(std::string name, std::string remedy)
    : name_(std::move(name)), remedy_(std::move(remedy)) {
  handle_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle_ != nullptr) return;
  const char* why = dlerror();
  fail<UsageError>("[device] {} cannot be loaded ({}): {}, or put its folder on LD_LIBRARY_PATH",
                   name_, why == nullptr ? "no reason given" : why, remedy_);
}

void* DynamicLibrary::address(const char* symbol) const {
  void* found = dlsym(handle_, symbol);
  require(found != nullptr, "[device] {} has no function {}: {}", name_, symbol, remedy_);
  return found;
}

}  // namespace lockstep
