#include "lockstep/kernels/cuda/libraries/nvrtc.h"

#include <nvrtc.h>

#include <array>

#include "lockstep/device/cuda/dynamic_library.h"

namespace lockstep {

struct Nvrtc::Library {
  Library() : library("libnvrtc.so.13", "install NVRTC for CUDA 13") {
    library.find(error_text, "nvrtcGetErrorString");
    library.find(create, "nvrtcCreateProgram");
    library.find(destroy, "nvrtcDestroyProgram");
    library.find(compile, "nvrtcCompileProgram");
    library.find(log_size, "nvrtcGetProgramLogSize");
    library.find(log, "nvrtcGetProgramLog");
    library.find(code_size, "nvrtcGetCUBINSize");
    library.find(code, "nvrtcGetCUBIN");
  }
  void check(nvrtcResult status, const char* what) const {
    if (status != NVRTC_SUCCESS) fail<InternalError>("[nvrtc] {}: {}", what, error_text(status));
  }

  DynamicLibrary library;
  decltype(&::nvrtcGetErrorString) error_text = nullptr;
  decltype(&::nvrtcCreateProgram) create = nullptr;
  decltype(&::nvrtcDestroyProgram) destroy = nullptr;
  decltype(&::nvrtcCompileProgram) compile = nullptr;
  decltype(&::nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&::nvrtcGetProgramLog) log = nullptr;
  decltype(&::nvrtcGetCUBINSize) code_size = nullptr;
  decltype(&::nvrtcGetCUBIN) code = nullptr;
};

Nvrtc::Nvrtc(const Gpu& gpu)
    : library_(std::make_unique<Library>()),
      architecture_(fmt::format("--gpu-architecture=sm_{}{}", gpu.major, gpu.minor)) {}

Nvrtc::~Nvrtc() = default;

// Without fused multiply-add: products and sums are rounded one by one, as in separate kernels.
std::string Nvrtc::compile(const std::string& source) const {
  const Library& nvrtc = *library_;
  nvrtcProgram program = nullptr;
  nvrtc.check(nvrtc.create(&program, source.c_str(), "lockstep.cu", 0, nullptr, nullptr),
              "reading a source");
  const std::array options = {architecture_.c_str(), "--std=c++17", "--fmad=false"};
  const nvrtcResult status =
      nvrtc.compile(program, static_cast<int>(options.size()), options.data());
  std::string result;
  std::size_t size = 0;
  if (status == NVRTC_SUCCESS) {
    nvrtc.check(nvrtc.code_size(program, &size), "getting the size of the code");
    result.resize(size);
    nvrtc.check(nvrtc.code(program, result.data()), "getting the code");
  } else {
    nvrtc.check(nvrtc.log_size(program, &size), "getting the size of the log");
    result.resize(size);
    nvrtc.check(nvrtc.log(program, result.data()), "getting the log");
  }
  nvrtc.check(nvrtc.destroy(&program), "freeing a program");
  if (status != NVRTC_SUCCESS) {
    fail<InternalError>("[nvrtc] {}: {}\n{}", nvrtc.error_text(status), result, source);
  }
  return result;
}

// Code stays loaded, because any plan may still use it. Querying a kernel's attributes loads it
// onto the GPU now instead of at its first launch.
const void* Nvrtc::kernel(const std::string& source, const char* name) {
  const std::lock_guard lock(mutex_);
  const void*& known = kernels_[source];
  if (known != nullptr) return known;
  const std::string code = compile(source);
  cudaLibrary_t library = nullptr;
  check_cuda(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
             "loading a compiled kernel");
  cudaKernel_t kernel = nullptr;
  check_cuda(cudaLibraryGetKernel(&kernel, library, name), "finding a compiled kernel");
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), "preparing a compiled kernel");
  known = kernel;
  return known;
}

}  // namespace lockstep
