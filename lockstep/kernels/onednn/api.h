// What oneDNN 2 and 3 do differently. api/v2.cpp and api/v3.cpp: CMake takes the one for the
// version that it found.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>

namespace lockstep::onednn {

// Where a blocked descriptor puts its elements; axes are oneDNN's.
struct Placement {
  dnnl::memory::dims dims;
  dnnl::memory::dims padded;   // the extents as whole blocks
  dnnl::memory::dims strides;  // from block to block, or element to element of an axis not cut
  dnnl::memory::dims inner_blocks,
      inner_axes;  // the sizes of the blocks, from outermost to innermost

  // How many blocks, or elements where it is not cut, an axis has.
  std::int64_t outer_extent(std::size_t axis) const;
  // Whether every element has the same place in both; strides of axes of extent one are never used.
  bool same_places(const Placement& other) const;
};

// Nothing for a descriptor that is not blocked, or with more in its memory than its elements.
std::optional<Placement> placement_of(const dnnl::memory::desc& desc);
// Nothing where oneDNN cannot describe it: version 3 cuts axes only in the ways for which it has a
// tag.
std::optional<dnnl::memory::desc> describe(const Placement& placement,
                                           dnnl::memory::data_type type);

// Attributes with an elementwise function of a primitive's result.
void append_eltwise(dnnl::primitive_attr& attributes, dnnl::algorithm function);

// The three primitives of a convolution. With `may_be_none` a descriptor is empty where oneDNN has
// no implementation; without, it throws.
struct ConvolutionSpec {
  dnnl::algorithm algorithm;
  dnnl::memory::dims strides, dilates, before, after;
  dnnl::primitive_attr attributes;
  bool may_be_none = false;
  int skipped = 0;  // of the implementations that oneDNN offers, not counting slow ones
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

// Moves on to the implementation that a spec means; an empty descriptor where there is none. Those
// that are slow on every machine do not count.
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
