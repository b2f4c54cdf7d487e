# Sets LOCKSTEP_HAS_CUDA if a CUDA toolkit 13 with the headers of cuDNN 9 and NCCL is found. Their
# libraries and cuBLAS are loaded when a GPU is first used, not linked: programs start without them.
set(LOCKSTEP_HAS_CUDA OFF)
if(NOT LOCKSTEP_CUDA)
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "no CUDA compiler (nvcc) was found: GPUs will not be used")
  return()
endif()
# Ampere and Hopper, and PTX, which the drivers of later GPUs compile.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
# nvcc cannot compile fmt's compile-time checks of format strings.
string(APPEND CMAKE_CUDA_FLAGS " -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1")
enable_language(CUDA)
# CMake before 3.26 does not know that nvcc supports C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_package(CUDAToolkit REQUIRED)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(CUDAToolkit_VERSION VERSION_LESS 13 OR NOT CUDNN_INCLUDE_DIR OR NOT NCCL_INCLUDE_DIR)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}, cuDNN's headers at ${CUDNN_INCLUDE_DIR}, NCCL's at "
                 "${NCCL_INCLUDE_DIR}: GPUs need CUDA 13 and both headers, and will not be used")
  return()
endif()
set(LOCKSTEP_HAS_CUDA ON)
