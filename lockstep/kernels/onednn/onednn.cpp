#include "lockstep/kernels/onednn/onednn.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
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

// A descriptor with another one's extents and type, in a layout.
dnnl::memory::desc to_desc_like(const dnnl::memory::desc& desc, const Layout& layout,
                                const Axes& axes) {
  const auto dims = desc.dims();
  std::vector<std::int64_t> extents(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i)
    extents[static_cast<std::size_t>(axes[i])] = dims[i];
  const DType dtype = desc.data_type() == dnnl::memory::data_type::u8    ? DType::U8
                      : desc.data_type() == dnnl::memory::data_type::s32 ? DType::I32
                                                                         : DType::F32;
  return to_desc({dtype, Shape(std::move(extents))}, layout, axes);
}

// How many blocks, or elements where it is not cut, an axis has.
std::int64_t outer_extent(const dnnl_memory_desc_t& desc, std::size_t axis) {
  std::int64_t extent = desc.padded_dims[axis];
  const dnnl_blocking_desc_t& blocking = desc.format_desc.blocking;
  for (int b = 0; b < blocking.inner_nblks; ++b) {
    if (blocking.inner_idxs[b] == static_cast<dnnl_dim_t>(axis)) extent /= blocking.inner_blks[b];
  }
  return extent;
}

// Whether two descriptors put every element at the same place; strides of axes of extent one are
// never used.
bool same_places(const dnnl::memory::desc& a, const dnnl::memory::desc& b) {
  const dnnl_blocking_desc_t& x = a.data.format_desc.blocking;
  const dnnl_blocking_desc_t& y = b.data.format_desc.blocking;
  if (a.data.ndims != b.data.ndims || x.inner_nblks != y.inner_nblks) return false;
  for (int i = 0; i < x.inner_nblks; ++i) {
    if (x.inner_blks[i] != y.inner_blks[i] || x.inner_idxs[i] != y.inner_idxs[i]) return false;
  }
  for (int i = 0; i < a.data.ndims; ++i) {
    if (a.data.padded_dims[i] != b.data.padded_dims[i]) return false;
    if (outer_extent(a.data, static_cast<std::size_t>(i)) > 1 && x.strides[i] != y.strides[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

dnnl::engine& engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::desc to_desc(const ValueType& type, const Layout& layout, const Axes& axes) {
  const auto rank = axes.size();
  std::vector<int> theirs(rank);  // oneDNN's axis of each of ours
  for (std::size_t i = 0; i < rank; ++i)
    theirs[static_cast<std::size_t>(axes[i])] = static_cast<int>(i);

  std::vector<std::int64_t> padded(rank);
  std::vector<std::int64_t> block(rank, 1);
  std::int64_t inner = 1;
  for (const auto& [axis, size] : layout.blocks) {
    block[static_cast<std::size_t>(axis)] *= size;
    inner *= size;
  }
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const std::int64_t extent = type.shape[static_cast<int>(axis)];
    padded[axis] = (extent + block[axis] - 1) / block[axis] * block[axis];
  }
  dnnl::memory::dims strides(rank);
  std::int64_t stride = inner;
  for (std::size_t o = rank; o-- > 0;) {
    const std::size_t axis = layout.row_major() ? o : static_cast<std::size_t>(layout.order[o]);
    strides[static_cast<std::size_t>(theirs[axis])] = stride;
    stride *= padded[axis] / block[axis];
  }
  // oneDNN checks strides as if nothing were blocked, so the blocks go in behind its back.
  const dnnl::memory::dims dims = to_dims(type.shape, axes);
  dnnl::memory::dims dense(rank, 1);
  for (std::size_t i = rank; i-- > 1;) dense[i - 1] = dense[i] * dims[i];
  dnnl::memory::desc desc(dims, to_data_type(type.dtype), dense);
  dnnl_memory_desc_t& raw = desc.data;
  std::copy(strides.begin(), strides.end(), raw.format_desc.blocking.strides);
  raw.format_desc.blocking.inner_nblks = static_cast<int>(layout.blocks.size());
  for (std::size_t b = 0; b < layout.blocks.size(); ++b) {
    raw.format_desc.blocking.inner_blks[b] = layout.blocks[b].second;
    raw.format_desc.blocking.inner_idxs[b] =
        theirs[static_cast<std::size_t>(layout.blocks[b].first)];
  }
  for (std::size_t axis = 0; axis < rank; ++axis) {
    raw.padded_dims[theirs[axis]] = padded[axis];
  }
  return desc;
}

dnnl::memory::desc any_desc(const ValueType& type, const Axes& axes) {
  return dnnl::memory::desc(to_dims(type.shape, axes), to_data_type(type.dtype),
                            dnnl::memory::format_tag::any);
}

std::optional<Layout> to_layout(const dnnl::memory::desc& desc, const Axes& axes) {
  const dnnl_memory_desc_t& raw = desc.data;
  if (raw.format_kind != dnnl_blocked || raw.extra.flags != 0 || raw.offset0 != 0) return {};
  const auto rank = static_cast<std::size_t>(raw.ndims);
  const dnnl_blocking_desc_t& blocking = raw.format_desc.blocking;
  Layout layout;
  for (int b = 0; b < blocking.inner_nblks; ++b) {
    layout.blocks.emplace_back(axes[static_cast<std::size_t>(blocking.inner_idxs[b])],
                               blocking.inner_blks[b]);
  }
  // The outer order follows the strides. Where an axis of extent one stands makes no difference:
  // such axes come first, so that equal memory has one layout.
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool a_long = outer_extent(raw, a) > 1;
    const bool b_long = outer_extent(raw, b) > 1;
    if (a_long != b_long) return b_long;
    if (a_long && blocking.strides[a] != blocking.strides[b]) {
      return blocking.strides[a] > blocking.strides[b];
    }
    return axes[a] < axes[b];
  });
  std::vector<int> long_axes;
  for (std::size_t axis : order) {
    layout.order.push_back(axes[axis]);
    if (outer_extent(raw, axis) > 1) long_axes.push_back(axes[axis]);
  }
  if (layout.blocks.empty() && std::is_sorted(long_axes.begin(), long_axes.end())) {
    layout.order.clear();
  }
  return same_places(to_desc_like(desc, layout, axes), desc) ? std::optional(layout) : std::nullopt;
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
  ensure(status == dnnl_success, "oneDNN refused to run a primitive (status {})",
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
