// oneDNN 3: a primitive is described by one object, and a memory descriptor is opaque. Blocks can
// be specified only by format tags, so we search for the tag that gives the wanted layout.
#include <algorithm>
#include <vector>

#include "lockstep/kernels/onednn/api.h"
#include "lockstep/kernels/onednn/onednn.h"

namespace lockstep::onednn {
namespace {

dnnl::memory::dims dense_extents(std::size_t rank) {
  return dnnl::memory::dims(rank, 256);  // a multiple of the blocks of every tag
}

// Empty if the tag is for another rank.
dnnl::memory::desc with_tag(const dnnl::memory::dims& dims, dnnl::memory::data_type type,
                            dnnl::memory::format_tag tag) {
  return dnnl::memory::desc(dims, type, tag, /*allow_empty=*/true);
}

// A format tag with blocks.
struct BlockedTag {
  dnnl::memory::format_tag tag;
  dnnl::memory::dims inner_blocks, inner_axes;
};

std::vector<BlockedTag> find_blocked_tags(std::size_t rank) {
  std::vector<BlockedTag> tags;
  for (int i = dnnl_format_tag_any + 1; i < dnnl_format_tag_last; ++i) {
    const auto tag = static_cast<dnnl::memory::format_tag>(i);
    const dnnl::memory::desc desc =
        with_tag(dense_extents(rank), dnnl::memory::data_type::f32, tag);
    if (desc && desc.get_inner_nblks() > 0) {
      tags.push_back({tag, desc.get_inner_blks(), desc.get_inner_idxs()});
    }
  }
  return tags;
}

const std::vector<BlockedTag>& blocked_tags(std::size_t rank) {
  static const std::vector<BlockedTag> of_rank[] = {
      {}, find_blocked_tags(1), find_blocked_tags(2), find_blocked_tags(3), find_blocked_tags(4)};
  static const std::vector<BlockedTag> none;
  return rank < std::size(of_rank) ? of_rank[rank] : none;
}

}  // namespace

std::optional<Placement> placement_of(const dnnl::memory::desc& desc) {
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked ||
      desc.get_submemory_offset() != 0) {
    return {};
  }
  Placement placement{.dims = desc.get_dims(),
                      .padded = desc.get_padded_dims(),
                      .strides = desc.get_strides(),
                      .inner_blocks = desc.get_inner_blks(),
                      .inner_axes = desc.get_inner_idxs()};
  // Some descriptors store more after the elements, such as the compensation of quantised weights.
  std::size_t last = 0;
  std::size_t block = 1;
  for (std::int64_t size : placement.inner_blocks) block *= static_cast<std::size_t>(size);
  for (std::size_t axis = 0; axis < placement.dims.size(); ++axis) {
    last += static_cast<std::size_t>((placement.outer_extent(axis) - 1) * placement.strides[axis]);
  }
  const std::size_t bytes = (last + block) * dnnl::memory::data_type_size(desc.get_data_type());
  return desc.get_size() == bytes ? std::optional(placement) : std::nullopt;
}

std::optional<dnnl::memory::desc> describe(const Placement& placement,
                                           dnnl::memory::data_type type) {
  if (placement.inner_blocks.empty()) {
    return dnnl::memory::desc(placement.dims, type, placement.strides);
  }
  for (const BlockedTag& known : blocked_tags(placement.dims.size())) {
    if (known.inner_blocks != placement.inner_blocks || known.inner_axes != placement.inner_axes) {
      continue;
    }
    const dnnl::memory::desc desc = with_tag(placement.dims, type, known.tag);
    const std::optional<Placement> there = desc ? placement_of(desc) : std::nullopt;
    if (there && there->same_places(placement)) return desc;
  }
  return {};
}

void append_eltwise(dnnl::primitive_attr& attributes, dnnl::algorithm function) {
  dnnl::post_ops ops;
  ops.append_eltwise(function, 0.0f, 0.0f);
  attributes.set_post_ops(ops);
}

dnnl::convolution_forward::primitive_desc describe_forward(const ConvolutionSpec& spec,
                                                           const dnnl::memory::desc& x,
                                                           const dnnl::memory::desc& w,
                                                           const dnnl::memory::desc& bias,
                                                           const dnnl::memory::desc& y) {
  return advanced(
      dnnl::convolution_forward::primitive_desc(
          engine(), dnnl::prop_kind::forward_training, spec.algorithm, x, w, bias, y, spec.strides,
          spec.dilates, spec.before, spec.after, spec.attributes, spec.may_be_none),
      spec.skipped);
}

dnnl::convolution_backward_data::primitive_desc describe_grad_input(
    const ConvolutionSpec& spec, const dnnl::memory::desc& dx, const dnnl::memory::desc& w,
    const dnnl::memory::desc& dy, const dnnl::convolution_forward::primitive_desc& hint) {
  return advanced(dnnl::convolution_backward_data::primitive_desc(
                      engine(), spec.algorithm, dx, w, dy, spec.strides, spec.dilates, spec.before,
                      spec.after, hint, spec.attributes, spec.may_be_none),
                  spec.skipped);
}

dnnl::convolution_backward_weights::primitive_desc describe_grad_filter(
    const ConvolutionSpec& spec, const dnnl::memory::desc& x, const dnnl::memory::desc& dw,
    const dnnl::memory::desc& dbias, const dnnl::memory::desc& dy,
    const dnnl::convolution_forward::primitive_desc& hint) {
  return advanced(dnnl::convolution_backward_weights::primitive_desc(
                      engine(), spec.algorithm, x, dw, dbias, dy, spec.strides, spec.dilates,
                      spec.before, spec.after, hint, spec.attributes, spec.may_be_none),
                  spec.skipped);
}

}  // namespace lockstep::onednn
