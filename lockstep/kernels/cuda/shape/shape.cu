// Ops that move elements, bitcast to integers of their size. Strided reads use ReadWalk of
// map.cuh; contiguous memory is copied.
#include <cstring>
#include <numeric>

#include "lockstep/kernels/cuda/primitives/bitcast.cuh"
#include "lockstep/kernels/cuda/primitives/map.cuh"
#include "lockstep/kernels/cuda/shape/gather.cuh"
#include "lockstep/kernels/cuda/shape/shape.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostIndices = std::int64_t{1} << 31;

std::unique_ptr<Kernel> make_reshape(const KernelCall& call) {
  const std::size_t bytes = call.graph.bytes(call.node.outputs[0]);
  return make_cuda_kernel([bytes](const Binding& binding, cudaStream_t stream) {
    copy_bytes(binding.outputs[0], binding.inputs[0], bytes, stream);
  });
}

// Reads the input with these strides, from this offset, into a row-major output.
std::unique_ptr<Kernel> strided_read(const KernelCall& call, std::vector<std::int64_t> strides,
                                     std::int64_t offset) {
  const StridedWalk<1> walk(call.out_shape(0), {std::move(strides)});
  return dispatch_element(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_cuda_kernel(
        [read = ReadWalk<T>(walk, offset)](const Binding& binding, cudaStream_t stream) {
          read.launch(binding.in<T>(0), binding.out<T>(0), stream);
        });
  });
}

std::unique_ptr<Kernel> make_slice(const KernelCall& call) {
  const std::vector<std::int64_t> strides = call.in_shape(0).strides();
  const Ints& begin = call.attrs().ints("begin");
  const bool empty = call.out_shape(0).elements() == 0;
  const std::int64_t offset =
      empty ? 0 : std::inner_product(begin.begin(), begin.end(), strides.begin(), std::int64_t{0});
  return strided_read(call, strides, offset);
}

std::unique_ptr<Kernel> make_broadcast_to(const KernelCall& call) {
  return strided_read(call, strides_as(call.in_shape(0), call.out_shape(0)), 0);
}

// Pad. An axis without padding is merged into the one outside it: images with padded rows and
// columns have three axes, the innermost being (width, channels).
struct PadAxis {
  std::int64_t before = 0;
  std::int64_t extent = 1;  // of the input
  std::int64_t after = 0;

  bool padded() const { return before != 0 || after != 0; }
  std::int64_t whole() const { return before + extent + after; }
};

// Innermost first.
std::vector<PadAxis> pad_axes(const Shape& shape, const Ints& before, const Ints& after) {
  std::vector<PadAxis> axes = {PadAxis()};
  for (int i = shape.rank(); i-- > 0;) {
    const auto axis = static_cast<std::size_t>(i);
    if (axes.back().padded()) axes.push_back(PadAxis());
    PadAxis& inner = axes.back();
    inner = {before[axis] * inner.extent, shape[i] * inner.extent, after[axis] * inner.extent};
  }
  return axes;
}

// In groups of V elements that are either all inside or all outside.
struct PadForm {
  std::uint32_t groups = 0;  // of the output
  int axes = 0;
  FastDivider whole[kWalkAxes];
  std::uint32_t before[kWalkAxes] = {};
  std::uint32_t extent[kWalkAxes] = {};
  std::int64_t stride[kWalkAxes] = {};  // of the input, in elements

  PadForm(const std::vector<PadAxis>& list, std::int64_t v) {
    ensure(list.size() <= kWalkAxes, "[cuda] cannot pad {} axes, more than {}", list.size(),
           kWalkAxes);
    std::int64_t count = 1;
    std::int64_t below = 1;
    for (const PadAxis& axis : list) {
      const std::int64_t unit = axes == 0 ? v : 1;
      whole[axes] = FastDivider(axis.whole() / unit);
      before[axes] = static_cast<std::uint32_t>(axis.before / unit);
      extent[axes] = static_cast<std::uint32_t>(axis.extent / unit);
      stride[axes] = below * unit;
      count *= axis.whole() / unit;
      below *= axis.extent;
      ++axes;
    }
    groups = static_cast<std::uint32_t>(count);
  }
};

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    pad_groups(PadForm form, const T* __restrict__ x, T* __restrict__ y, T filling) {
  const std::uint32_t group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= form.groups) return;
  std::uint32_t rest = group;
  std::int64_t offset = 0;
  bool inside = true;
  for (int axis = 0; axis < form.axes; ++axis) {
    // An index before the input wraps around to a large number.
    const std::uint32_t index = form.whole[axis].split(rest) - form.before[axis];
    inside &= index < form.extent[axis];
    offset += index * form.stride[axis];
  }
  Vector<T, V> vector;
  if (inside) {
    vector = load_vector<T, V>(x + offset);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) vector.items[i] = filling;
  }
  store_vector(y + std::int64_t{group} * V, vector);
}

// The bits of a number stored in a dtype.
template <class Word>
Word bits_of(DType dtype, double value) {
  return cuda_dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool is_short = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;
    const T element = static_cast<T>(static_cast<std::conditional_t<is_short, float, T>>(value));
    Word word{};
    if constexpr (sizeof(T) == sizeof(Word)) std::memcpy(&word, &element, sizeof(T));
    return word;
  });
}

std::unique_ptr<Kernel> make_pad(const KernelCall& call) {
  const std::int64_t elements = call.out_shape(0).elements();
  if (elements == 0) return make_cuda_kernel([](const Binding&, cudaStream_t) {});
  const Attrs& attrs = call.attrs();
  const std::vector<PadAxis> axes =
      pad_axes(call.in_shape(0), attrs.ints("before"), attrs.ints("after"));
  return dispatch_element(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    constexpr int V = kCommonVectorSize<T>;
    const PadAxis& inner = axes.front();
    const bool fits = (inner.before | inner.extent | inner.after) % V == 0;
    const T filling = bits_of<T>(call.in_dtype(0), attrs.real("value"));
    return make_cuda_kernel([fits, filling, vectors = PadForm(axes, fits ? V : 1),
                             singles = PadForm(axes, 1)](const Binding& b, cudaStream_t stream) {
      const T* x = b.in<T>(0);
      T* y = b.out<T>(0);
      if (fits && is_aligned<T, V>(x) && is_aligned<T, V>(y)) {
        const unsigned blocks = cuda_blocks(vectors.groups, kThreads, kMostBlocks);
        pad_groups<V><<<blocks, kThreads, 0, stream>>>(vectors, x, y, filling);
      } else {
        const unsigned blocks = cuda_blocks(singles.groups, kThreads, kMostBlocks);
        pad_groups<1><<<blocks, kThreads, 0, stream>>>(singles, x, y, filling);
      }
      check_launch("pad");
    });
  });
}

// One thread per element of the output; a class out of range gives a row of zeros.
template <class Index, class T>
__global__ void __launch_bounds__(kThreads)
    one_hot(const Index* __restrict__ classes, T* __restrict__ y, std::uint32_t count,
            FastDivider depth, T one) {
  const std::uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= count) return;
  std::uint32_t row = at;
  const std::uint32_t column = depth.split(row);
  y[at] = static_cast<std::int64_t>(classes[row]) == column ? one : T{0};
}

std::unique_ptr<Kernel> make_one_hot(const KernelCall& call) {
  const auto count = static_cast<std::uint32_t>(call.out_shape(0).elements());
  const FastDivider depth(call.attrs().integer("depth"));
  const DType dtype = call.output(0).type.dtype;
  return dispatch_index(call.in_dtype(0), [&](auto index) {
    return dispatch_element(dtype, [&](auto zero) {
      using Index = decltype(index);
      using T = decltype(zero);
      return make_cuda_kernel([count, depth, one = bits_of<T>(dtype, 1.0)](const Binding& binding,
                                                                           cudaStream_t stream) {
        if (count == 0) return;
        const unsigned blocks = cuda_blocks(count, kThreads, kMostBlocks);
        one_hot<<<blocks, kThreads, 0, stream>>>(binding.in<Index>(0), binding.out<T>(0), count,
                                                 depth, one);
        check_launch("one_hot");
      });
    });
  });
}

bool row_major(const KernelCall& call) {
  return call.row_major();
}

bool small_and_row_major(const KernelCall& call) {
  return call.row_major() && call.out_shape(0).elements() < kMostIndices;
}

bool supports_one_hot(const KernelCall& call) {
  return small_and_row_major(call) && call.attrs().integer("depth") < kMostIndices;
}

}  // namespace

void add_cuda_shape(KernelLibrary& library) {
  library.add(Op::Reshape, {.name = "cuda.reshape", .supports = row_major, .make = make_reshape});
  library.add(Op::Slice, {.name = "cuda.slice", .supports = row_major, .make = make_slice});
  library.add(Op::BroadcastTo,
              {.name = "cuda.broadcast_to", .supports = row_major, .make = make_broadcast_to});
  library.add(Op::Pad, {.name = "cuda.pad", .supports = small_and_row_major, .make = make_pad});
  library.add(Op::OneHot,
              {.name = "cuda.one_hot", .supports = supports_one_hot, .make = make_one_hot});
  add_cuda_collective(library);
  add_cuda_transpose(library);
  add_cuda_concat_split(library);
  add_cuda_gather(library);
  add_cuda_gather_grad(library);
}

}  // namespace lockstep
