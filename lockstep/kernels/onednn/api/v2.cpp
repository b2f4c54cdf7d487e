// oneDNN 2: a primitive is described by two objects, the first of which must outlive the creation
// of the second, and a memory descriptor is a C structure.
#include <algorithm>

#include "lockstep/kernels/onednn/api.h"
#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {

std::optional<Placement> placement_of(const dnnl::memory::desc& desc) {
  const dnnl_memory_desc_t& raw = desc.data;
  if (raw.format_kind != dnnl_blocked || raw.extra.flags != 0 || raw.offset0 != 0) return {};
  const dnnl_blocking_desc_t& blocking = raw.format_desc.blocking;
  const auto list = [](const dnnl_dim_t* first, int count) {
    return dnnl::memory::dims(first, first + count);
  };
  return Placement{.dims = list(raw.dims, raw.ndims),
                   .padded = list(raw.padded_dims, raw.ndims),
                   .strides = list(blocking.strides, raw.ndims),
                   .inner_blocks = list(blocking.inner_blks, blocking.inner_nblks),
                   .inner_axes = list(blocking.inner_idxs, blocking.inner_nblks)};
}

std::optional<dnnl::memory::desc> describe(const Placement& placement,
                                           dnnl::memory::data_type type) {
  // oneDNN checks strides as if there were no blocks, so the blocks are written directly into the
  // structure.
  const std::size_t rank = placement.dims.size();
  dnnl::memory::dims dense(rank, 1);
  for (std::size_t i = rank; i-- > 1;) dense[i - 1] = dense[i] * placement.dims[i];
  dnnl::memory::desc desc(placement.dims, type, dense);
  dnnl_blocking_desc_t& blocking = desc.data.format_desc.blocking;
  std::ranges::copy(placement.strides, blocking.strides);
  std::ranges::copy(placement.padded, desc.data.padded_dims);
  std::ranges::copy(placement.inner_blocks, blocking.inner_blks);
  std::ranges::copy(placement.inner_axes, blocking.inner_idxs);
  blocking.inner_nblks = static_cast<int>(placement.inner_blocks.size());
  return desc;
}

void append_eltwise(dnnl::primitive_attr& attributes, dnnl::algorithm function) {
  dnnl::post_ops ops;
  ops.append_eltwise(1.0f, function, 0.0f, 0.0f);
  attributes.set_post_ops(ops);
}

dnnl::convolution_forward::primitive_desc describe_forward(const ConvolutionSpec& spec,
                                                           const dnnl::memory::desc& x,
                                                           const dnnl::memory::desc& w,
                                                           const dnnl::memory::desc& bias,
                                                           const dnnl::memory::desc& y) {
  const dnnl::convolution_forward::desc op(dnnl::prop_kind::forward_training, spec.algorithm, x, w,
                                           bias, y, spec.strides, spec.dilates, spec.before,
                                           spec.after);
  return advanced(
      dnnl::convolution_forward::primitive_desc(op, spec.attributes, engine(), spec.may_be_none),
      spec.skipped);
}

dnnl::convolution_backward_data::primitive_desc describe_grad_input(
    const ConvolutionSpec& spec, const dnnl::memory::desc& dx, const dnnl::memory::desc& w,
    const dnnl::memory::desc& dy, const dnnl::convolution_forward::primitive_desc& hint) {
  const dnnl::convolution_backward_data::desc op(spec.algorithm, dx, w, dy, spec.strides,
                                                 spec.dilates, spec.before, spec.after);
  return advanced(dnnl::convolution_backward_data::primitive_desc(op, spec.attributes, engine(),
                                                                  hint, spec.may_be_none),
                  spec.skipped);
}

dnnl::convolution_backward_weights::primitive_desc describe_grad_filter(
    const ConvolutionSpec& spec, const dnnl::memory::desc& x, const dnnl::memory::desc& dw,
    const dnnl::memory::desc& dbias, const dnnl::memory::desc& dy,
    const dnnl::convolution_forward::primitive_desc& hint) {
  const dnnl::convolution_backward_weights::desc op(spec.algorithm, x, dw, dbias, dy, spec.strides,
                                                    spec.dilates, spec.before, spec.after);
  return advanced(dnnl::convolution_backward_weights::primitive_desc(op, spec.attributes, engine(),
                                                                     hint, spec.may_be_none),
                  spec.skipped);
}

}  // namespace lockstep::onednn
