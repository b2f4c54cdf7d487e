#include "lockstep/kernels/onednn/onednn.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/kernels/onednn/version.h"
#include "lockstep/kernels/pooled_conv.h"

namespace lockstep {

void add_onednn_kernels(KernelLibrary& library) {
  onednn::add_matmul(library);
  add_pooled_conv(library);
  onednn::add_thin_conv(library);
  onednn::add_conv(library);
  onednn::add_pool(library);
  onednn::add_norm(library);
  onednn::add_norm_inference(library);
  onednn::add_layer_norm(library);
  onednn::add_softmax(library);
  onednn::add_elementwise(library);
  onednn::add_reorder(library);
}

std::string onednn_version() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

namespace onednn {
namespace {

dnnl::memory::data_type to_data_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return dnnl::memory::data_type::f32;
    case DType::U8:
      return dnnl::memory::data_type::u8;
    case DType::I32:
      return dnnl::memory::data_type::s32;
    default:
      fail<InternalError>("oneDNN is not used for {}", name_of(dtype));
  }
}

dnnl::memory::dims to_dims(const Shape& shape, const Axes& axes) {
  dnnl::memory::dims dims;
  for (int axis : axes) dims.push_back(shape[axis]);
  return dims;
}

// Converts a layout to oneDNN's terms.
Placement place(const Shape& shape, const Layout& layout, const Axes& axes) {
  const auto rank = axes.size();
  std::vector<int> theirs(rank);  // oneDNN's axis of each of ours
  for (std::size_t i = 0; i < rank; ++i)
    theirs[static_cast<std::size_t>(axes[i])] = static_cast<int>(i);

  Placement at{.dims = to_dims(shape, axes),
               .padded = dnnl::memory::dims(rank),
               .strides = dnnl::memory::dims(rank),
               .inner_blocks = {},
               .inner_axes = {}};
  dnnl::memory::dims block(rank, 1);  // per axis of oneDNN
  std::int64_t stride = 1;
  for (const auto& [axis, size] : layout.blocks) {
    const int their_axis = theirs[static_cast<std::size_t>(axis)];
    block[static_cast<std::size_t>(their_axis)] *= size;
    stride *= size;
    at.inner_blocks.push_back(size);
    at.inner_axes.push_back(their_axis);
  }
  for (std::size_t o = rank; o-- > 0;) {
    const std::size_t ours = layout.row_major() ? o : static_cast<std::size_t>(layout.order[o]);
    const auto axis = static_cast<std::size_t>(theirs[ours]);
    const std::int64_t blocks = (at.dims[axis] + block[axis] - 1) / block[axis];
    at.padded[axis] = blocks * block[axis];
    at.strides[axis] = stride;
    stride *= blocks;
  }
  return at;
}

Shape shape_of(const Placement& placement, const Axes& axes) {
  std::vector<std::int64_t> extents(axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i)
    extents[static_cast<std::size_t>(axes[i])] = placement.dims[i];
  return Shape(std::move(extents));
}

}  // namespace

dnnl::engine& engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

std::optional<dnnl::memory::desc> to_desc(const ValueInfo& value, const Axes& axes) {
  return describe(place(value.type.shape, value.layout, axes), to_data_type(value.type.dtype));
}

dnnl::memory::desc any_desc(const ValueType& type, const Axes& axes) {
  return dnnl::memory::desc(to_dims(type.shape, axes), to_data_type(type.dtype),
                            dnnl::memory::format_tag::any);
}

std::optional<Layout> to_layout(const dnnl::memory::desc& desc, const Axes& axes) {
  const std::optional<Placement> at = placement_of(desc);
  if (!at) return {};
  Layout layout;
  for (std::size_t b = 0; b < at->inner_blocks.size(); ++b) {
    layout.blocks.emplace_back(axes[static_cast<std::size_t>(at->inner_axes[b])],
                               at->inner_blocks[b]);
  }
  // The outer order follows the strides. The position of an axis of extent one does not matter;
  // such axes are put first, so that equal memory has only one layout.
  std::vector<std::size_t> order(axes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool a_long = at->outer_extent(a) > 1;
    const bool b_long = at->outer_extent(b) > 1;
    if (a_long != b_long) return b_long;
    if (a_long && at->strides[a] != at->strides[b]) return at->strides[a] > at->strides[b];
    return axes[a] < axes[b];
  });
  std::vector<int> long_axes;
  for (std::size_t axis : order) {
    layout.order.push_back(axes[axis]);
    if (at->outer_extent(axis) > 1) long_axes.push_back(axes[axis]);
  }
  if (layout.blocks.empty() && std::is_sorted(long_axes.begin(), long_axes.end())) {
    layout.order.clear();
  }
  const bool exact = place(shape_of(*at, axes), layout, axes).same_places(*at);
  return exact ? std::optional(layout) : std::nullopt;
}

PrimitiveKernel::PrimitiveKernel(dnnl::primitive primitive, std::vector<Argument> arguments,
                                 dnnl::memory::desc scratchpad)
    : primitive_(std::move(primitive)),
      arguments_(std::move(arguments)),
      scratchpad_(std::move(scratchpad)),
      stream_(engine()) {}

void PrimitiveKernel::bind(const Binding& binding) {
  for (const Argument& argument : arguments_) {
    void* data = argument.output ? static_cast<void*>(binding.outputs[argument.index])
                                 : const_cast<std::byte*>(binding.inputs[argument.index]);
    memories_.emplace_back(argument.desc, engine(), data);
    list_.push_back({argument.name, memories_.back().get()});
  }
  if (scratchpad_.get_size() > 0) {
    memories_.emplace_back(scratchpad_, engine(), binding.workspace);
    list_.push_back({DNNL_ARG_SCRATCHPAD, memories_.back().get()});
  }
}

void PrimitiveKernel::run(Stream&) {
  const dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), stream_.get(),
                                                      static_cast<int>(list_.size()), list_.data());
  ensure(status == dnnl_success, "oneDNN failed to run a primitive (status {})",
         static_cast<int>(status));
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

bool f32_and_not_empty(const KernelCall& call) {
  for (ValueId id : call.node.inputs) {
    const ValueType& type = call.graph.type(id);
    if (type.shape.elements() == 0) return false;
    if (is_floating(type.dtype) && type.dtype != DType::F32) return false;
  }
  for (ValueId id : call.node.outputs) {
    const ValueType& type = call.graph.type(id);
    if (type.shape.elements() == 0) return false;
    if (is_floating(type.dtype) && type.dtype != DType::F32) return false;
  }
  return true;
}

}  // namespace onednn
}  // namespace lockstep
