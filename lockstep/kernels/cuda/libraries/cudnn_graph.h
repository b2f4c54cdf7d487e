// Computations as cuDNN graphs: tensors and operations between them, which cuDNN compiles to one
// kernel or a few.
//
//   CudnnGraph graph(cudnn);
//   const auto x = graph.tensor(cudnn_image(DType::F16, 64, 56, 56, 64));
//   const auto w = graph.tensor(cudnn_filter(DType::F16, 64, 3, 3, 64));
//   const auto y = graph.tensor(cudnn_image(DType::F16, 64, 56, 56, 64));
//   graph.convolve({.before = {1, 1}, .after = {1, 1}}, x, w, y);
//
// A tensor that one operation passes to the next without writing it to memory has `is_virtual` set.
// Graphs become plans in cudnn_plan.h.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/kernels/cuda/libraries/cudnn.h"

namespace lockstep {

// cuDNN's attribute type of a C++ type. Descriptors have separate functions.
template <class T>
inline constexpr cudnnBackendAttributeType_t kCudnnType = T::none;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<std::int64_t> = CUDNN_TYPE_INT64;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<float> = CUDNN_TYPE_FLOAT;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<double> = CUDNN_TYPE_DOUBLE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<bool> = CUDNN_TYPE_BOOLEAN;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<void*> = CUDNN_TYPE_VOID_PTR;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnConvolutionMode_t> =
    CUDNN_TYPE_CONVOLUTION_MODE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnPointwiseMode_t> =
    CUDNN_TYPE_POINTWISE_MODE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnGenStatsMode_t> =
    CUDNN_TYPE_GENSTATS_MODE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnBackendHeurMode_t> =
    CUDNN_TYPE_HEUR_MODE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnBackendKnobType_t> =
    CUDNN_TYPE_KNOB_TYPE;
template <>
inline constexpr cudnnBackendAttributeType_t kCudnnType<cudnnBackendNumericalNote_t> =
    CUDNN_TYPE_NUMERICAL_NOTE;

// A cuDNN descriptor: attributes are set, then it is finished and can no longer change. The first
// error is kept and returned by finish().
class CudnnDescriptor {
 public:
  CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, const T& value) {
    set(name, kCudnnType<T>, 1, &value);
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    set(name, kCudnnType<T>, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.descriptor_);
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<CudnnDescriptor>& others);
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);

  // Success, or the first error about an attribute or the whole descriptor.
  cudnnStatus_t finish();

  // Values of a finished descriptor, at most `most`.
  template <class T>
  std::vector<T> values(cudnnBackendAttributeName_t name, std::size_t most) const {
    std::vector<T> values(most);
    values.resize(get(name, kCudnnType<T>, most, values.data()));
    return values;
  }
  // The same for descriptors.
  std::vector<CudnnDescriptor> parts(cudnnBackendAttributeName_t name,
                                     cudnnBackendDescriptorType_t type, std::size_t most) const;
  // The number of descriptors; 0 if cuDNN does not say.
  std::size_t count_parts(cudnnBackendAttributeName_t name) const;

 private:
  std::size_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::size_t most, void* values) const;

  const Cudnn& cudnn_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;  // the first error
};

struct CudnnTensor {
  std::vector<std::int64_t> dims;     // cuDNN's order: N, C, H, W
  std::vector<std::int64_t> strides;  // in elements
  DType dtype = DType::F32;
  bool is_virtual = false;
  bool is_by_value = false;  // a scalar in host memory

  // Elements from the first to the last, gaps included.
  std::int64_t elements() const;
};

// The tensors of a network: images (n, h, w, c), filters (o, kh, kw, in), one number per channel.
CudnnTensor cudnn_image(DType dtype, std::int64_t n, std::int64_t h, std::int64_t w,
                        std::int64_t c);
CudnnTensor cudnn_filter(DType dtype, std::int64_t o, std::int64_t kh, std::int64_t kw,
                         std::int64_t in);
CudnnTensor cudnn_channels(DType dtype, std::int64_t c);

struct CudnnConvolution {
  std::vector<std::int64_t> strides = {1, 1};
  std::vector<std::int64_t> dilations = {1, 1};
  std::vector<std::int64_t> before = {0, 0};  // padding: top, left
  std::vector<std::int64_t> after = {0, 0};   // bottom, right
};

class CudnnGraph {
 public:
  using Id = std::int64_t;  // of a tensor, from 1 on

  explicit CudnnGraph(const Cudnn& cudnn);
  CudnnGraph(const CudnnGraph&) = delete;
  CudnnGraph& operator=(const CudnnGraph&) = delete;

  Id tensor(CudnnTensor tensor);

  // Operations; all compute in f32. The number of groups follows from the channels of image and
  // filter.
  void convolve(const CudnnConvolution& conv, Id x, Id filter, Id y);
  void grad_input(const CudnnConvolution& conv, Id dy, Id filter, Id dx);
  void grad_filter(const CudnnConvolution& conv, Id x, Id dy, Id dw);
  // y = f(x), and y = f(x, b) with b broadcast: a scale or an offset per channel, for example.
  void pointwise(cudnnPointwiseMode_t mode, Id x, Id y);
  void pointwise(cudnnPointwiseMode_t mode, Id x, Id b, Id y);
  // dx = dy · f'(x) for the modes that end in BWD.
  void pointwise_grad(cudnnPointwiseMode_t mode, Id dy, Id x, Id dx);
  // The sum and the sum of squares of each channel of x.
  void statistics(Id x, Id sum, Id square_sum);
  // What batch norm's gradient needs per channel: the gradients of scale and offset, and the three
  // coefficients of dx = dy_scale · dy + x_scale · x + offset.
  struct NormGrad {
    Id x, dy, mean, inverse_deviation, scale;               // in
    Id scale_grad, offset_grad, dy_scale, x_scale, offset;  // out
  };
  void norm_grad(const NormGrad& ids);

  // Completes the graph; returns cuDNN's status.
  cudnnStatus_t finish();

  const CudnnDescriptor& descriptor() const { return graph_; }
  const Cudnn& cudnn() const { return cudnn_; }
  const CudnnTensor& tensor(Id id) const { return tensors_[static_cast<std::size_t>(id - 1)]; }
  // The tensors that need memory when the graph runs.
  std::vector<Id> bound() const;

 private:
  CudnnDescriptor convolution(const CudnnConvolution& conv);
  CudnnDescriptor pointwise_of(cudnnPointwiseMode_t mode);
  void add(CudnnDescriptor operation);
  void note(cudnnStatus_t status);
  const CudnnDescriptor& of(Id id) const { return descriptors_[static_cast<std::size_t>(id - 1)]; }

  const Cudnn& cudnn_;
  std::vector<CudnnTensor> tensors_;
  std::vector<CudnnDescriptor> descriptors_;  // of the tensors
  std::vector<CudnnDescriptor> settings_;     // of the operations
  std::vector<CudnnDescriptor> operations_;
  CudnnDescriptor graph_;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
};

}  // namespace lockstep
