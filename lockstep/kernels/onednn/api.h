// What differs between oneDNN 2 and 3, implemented in api/v2.cpp and api/v3.cpp: CMake compiles the
// one for the version it found.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>

namespace lockstep::onednn {

// How a blocked descriptor lays out its elements; axes are oneDNN's.
struct Placement {
  dnnl::memory::dims dims;
  dnnl::memory::dims padded;   // the extents rounded up to full blocks
  dnnl::memory::dims strides;  // between blocks, or between elements of an axis without blocks
  dnnl::memory::dims inner_blocks,
      inner_axes;  // the sizes of the blocks, from outermost to innermost

  // The number of blocks of an axis, or of elements if it has no blocks.
  std::int64_t outer_extent(std::size_t axis) const;
  // Whether every element has the same offset in both; strides of axes of extent one are not used.
  bool same_places(const Placement& other) const;
};

// Nothing for a descriptor that is not blocked, or whose memory holds more than its elements.
std::optional<Placement> placement_of(const dnnl::memory::desc& desc);
// Nothing if oneDNN cannot describe it: version 3 supports only those blocks that have a format
// tag.
std::optional<dnnl::memory::desc> describe(const Placement& placement,
                                           dnnl::memory::data_type type);

// Adds an elementwise function of a primitive's result to its attributes.
void append_eltwise(dnnl::primitive_attr& attributes, dnnl::algorithm function);

// The three primitives of a convolution. If oneDNN has no implementation, the descriptor is empty
// with `may_be_none`; otherwise an exception is thrown.
struct ConvolutionSpec {
  dnnl::algorithm algorithm;
  dnnl::memory::dims strides, dilates, before, after;
  dnnl::primitive_attr attributes;
  bool may_be_none = false;
  int skipped = 0;  // implementations to skip, not counting slow ones
};
dnnl::convolution_forward::primitive_desc describe_forward(const ConvolutionSpec& spec,
                                                           const dnnl::memory::desc& x,
                                                           const dnnl::memory::desc& w,
                                                           const dnnl::memory::desc& bias,
                                                           const dnnl::memory::desc& y);
dnnl::convolution_backward_data::primitive_desc describe_grad_input(
    const ConvolutionSpec& spec, const dnnl::memory::desc& dx, const dnnl::memory::desc& w,
    const dnnl::memory::desc& dy, const dnnl::convolution_forward::primitive_desc& hint);
dnnl::convolution_backward_weights::primitive_desc describe_grad_filter(
    const ConvolutionSpec& spec, const dnnl::memory::desc& x, const dnnl::memory::desc& dw,
    const dnnl::memory::desc& dbias, const dnnl::memory::desc& dy,
    const dnnl::convolution_forward::primitive_desc& hint);

// Skips implementations, not counting those that are slow on every machine; an empty descriptor if
// none is left.
template <class PrimitiveDesc>
PrimitiveDesc advanced(PrimitiveDesc desc, int skipped) {
  const auto is_slow = [&] {
    const std::string name = desc.impl_info_str();
    return name.starts_with("ref") || name.find("sse41") != std::string::npos;
  };
  while (desc && skipped > 0) {
    if (!desc.next_impl()) return {};
    if (!is_slow()) --skipped;
  }
  return desc;
}

}  // namespace lockstep::onednn
