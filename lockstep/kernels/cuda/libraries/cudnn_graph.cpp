#include "lockstep/kernels/cuda/libraries/cudnn_graph.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes, of every tensor

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return CUDNN_DATA_FLOAT;
    case DType::F16:
      return CUDNN_DATA_HALF;
    case DType::BF16:
      return CUDNN_DATA_BFLOAT16;
    case DType::I32:
      return CUDNN_DATA_INT32;
    case DType::I64:
      return CUDNN_DATA_INT64;
    case DType::Bool:
      return CUDNN_DATA_BOOLEAN;
    default:
      fail<InternalError>("[cudnn] its tensors cannot have the type {}", name_of(dtype));
  }
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(const Cudnn& cudnn, cudnnBackendDescriptorType_t type)
    : cudnn_(cudnn) {
  cudnn_.check(cudnn_.make_descriptor(type, &descriptor_), "creating a descriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnn_.free_descriptor(descriptor_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : cudnn_(other.cudnn_),
      descriptor_(std::exchange(other.descriptor_, nullptr)),
      status_(other.status_) {}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name,
                          const std::vector<CudnnDescriptor>& others) {
  std::vector<cudnnBackendDescriptor_t> pointers;
  for (const CudnnDescriptor& other : others) pointers.push_back(other.descriptor_);
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(pointers.size()),
      pointers.data());
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          std::int64_t count, const void* values) {
  const cudnnStatus_t status = cudnn_.set_attribute(descriptor_, name, type, count, values);
  if (status_ == CUDNN_STATUS_SUCCESS) status_ = status;
}

cudnnStatus_t CudnnDescriptor::finish() {
  if (status_ == CUDNN_STATUS_SUCCESS) status_ = cudnn_.finalize(descriptor_);
  return status_;
}

std::size_t CudnnDescriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                 std::size_t most, void* values) const {
  std::int64_t count = 0;
  const cudnnStatus_t status = cudnn_.get_attribute(
      descriptor_, name, type, static_cast<std::int64_t>(most), &count, values);
  if (status != CUDNN_STATUS_SUCCESS || count < 0) return 0;
  return std::min(most, static_cast<std::size_t>(count));
}

std::vector<CudnnDescriptor> CudnnDescriptor::parts(cudnnBackendAttributeName_t name,
                                                    cudnnBackendDescriptorType_t type,
                                                    std::size_t most) const {
  std::vector<CudnnDescriptor> result;
  std::vector<cudnnBackendDescriptor_t> pointers;
  result.reserve(most);
  for (std::size_t i = 0; i < most; ++i) {
    result.emplace_back(cudnn_, type);
    pointers.push_back(result.back().descriptor_);
  }
  const std::size_t count = get(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, pointers.data());
  while (result.size() > count) result.pop_back();
  return result;
}

std::size_t CudnnDescriptor::count_parts(cudnnBackendAttributeName_t name) const {
  std::int64_t count = 0;
  const cudnnStatus_t status =
      cudnn_.get_attribute(descriptor_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
  return status == CUDNN_STATUS_SUCCESS && count > 0 ? static_cast<std::size_t>(count) : 0;
}

std::int64_t CudnnTensor::elements() const {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return last + 1;
}

CudnnTensor cudnn_image(DType dtype, std::int64_t n, std::int64_t h, std::int64_t w,
                        std::int64_t c) {
  return {.dims = {n, c, h, w}, .strides = {h * w * c, 1, w * c, c}, .dtype = dtype};
}

CudnnTensor cudnn_filter(DType dtype, std::int64_t o, std::int64_t kh, std::int64_t kw,
                         std::int64_t in) {
  return {.dims = {o, in, kh, kw}, .strides = {kh * kw * in, 1, kw * in, in}, .dtype = dtype};
}

CudnnTensor cudnn_channels(DType dtype, std::int64_t c) {
  return {.dims = {1, c, 1, 1}, .strides = {c, 1, c, c}, .dtype = dtype};
}

CudnnGraph::CudnnGraph(const Cudnn& cudnn)
    : cudnn_(cudnn), graph_(cudnn, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {}

void CudnnGraph::note(cudnnStatus_t status) {
  if (status_ == CUDNN_STATUS_SUCCESS) status_ = status;
}

CudnnGraph::Id CudnnGraph::tensor(CudnnTensor tensor) {
  const Id id = static_cast<Id>(tensors_.size()) + 1;
  CudnnDescriptor& made = descriptors_.emplace_back(cudnn_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, data_type(tensor.dtype));
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.dims);
  made.set(CUDNN_ATTR_TENSOR_STRIDES, tensor.strides);
  if (tensor.is_virtual) made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  if (tensor.is_by_value) made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  note(made.finish());
  tensors_.push_back(std::move(tensor));
  return id;
}

CudnnDescriptor CudnnGraph::convolution(const CudnnConvolution& conv) {
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, static_cast<std::int64_t>(conv.strides.size()));
  made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, conv.dilations);
  made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, conv.strides);
  made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, conv.before);
  made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, conv.after);
  note(made.finish());
  return made;
}

void CudnnGraph::add(CudnnDescriptor operation) {
  note(operation.finish());
  operations_.push_back(std::move(operation));
}

void CudnnGraph::convolve(const CudnnConvolution& conv, Id x, Id filter, Id y) {
  const CudnnDescriptor& settings = settings_.emplace_back(convolution(conv));
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, settings);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, of(x));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, of(filter));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, of(y));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 1.0f);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 0.0f);
  add(std::move(made));
}

void CudnnGraph::grad_input(const CudnnConvolution& conv, Id dy, Id filter, Id dx) {
  const CudnnDescriptor& settings = settings_.emplace_back(convolution(conv));
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, settings);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, of(dy));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, of(filter));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, of(dx));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 1.0f);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 0.0f);
  add(std::move(made));
}

void CudnnGraph::grad_filter(const CudnnConvolution& conv, Id x, Id dy, Id dw) {
  const CudnnDescriptor& settings = settings_.emplace_back(convolution(conv));
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, settings);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, of(x));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, of(dy));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, of(dw));
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 1.0f);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 0.0f);
  add(std::move(made));
}

CudnnDescriptor CudnnGraph::pointwise_of(cudnnPointwiseMode_t mode) {
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  made.set(CUDNN_ATTR_POINTWISE_MODE, mode);
  made.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  note(made.finish());
  return made;
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Id x, Id y) {
  const CudnnDescriptor& settings = settings_.emplace_back(pointwise_of(mode));
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, settings);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, of(x));
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, of(y));
  add(std::move(made));
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Id x, Id b, Id y) {
  const CudnnDescriptor& settings = settings_.emplace_back(pointwise_of(mode));
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, settings);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, of(x));
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, of(b));
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, of(y));
  add(std::move(made));
}

void CudnnGraph::pointwise_grad(cudnnPointwiseMode_t mode, Id dy, Id x, Id dx) {
  const CudnnDescriptor& settings = settings_.emplace_back(pointwise_of(mode));
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, settings);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, of(x));
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, of(dy));
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, of(dx));
  add(std::move(made));
}

void CudnnGraph::statistics(Id x, Id sum, Id square_sum) {
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM);
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, of(x));
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, of(sum));
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, of(square_sum));
  add(std::move(made));
}

void CudnnGraph::norm_grad(const NormGrad& ids) {
  CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, of(ids.x));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, of(ids.dy));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, of(ids.mean));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, of(ids.inverse_deviation));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, of(ids.scale));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, of(ids.scale_grad));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, of(ids.offset_grad));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, of(ids.dy_scale));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, of(ids.x_scale));
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, of(ids.offset));
  add(std::move(made));
}

cudnnStatus_t CudnnGraph::finish() {
  if (status_ != CUDNN_STATUS_SUCCESS) return status_;
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, cudnn_.handle);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations_);
  note(graph_.finish());
  return status_;
}

std::vector<CudnnGraph::Id> CudnnGraph::bound() const {
  std::vector<Id> ids;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].is_virtual) ids.push_back(static_cast<Id>(i) + 1);
  }
  return ids;
}

}  // namespace lockstep
