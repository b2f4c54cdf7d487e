// Transpose and Reorder: elements in another order of axes. Axes that stay together are merged.
//
// If the innermost axis stays innermost, rows are copied (ReadWalk). Otherwise the contiguous axis
// of the input and that of the output are exchanged in tiles of 32 × 32 through shared memory, so
// that both reads and writes are coalesced, wherever the other axes go.
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/bitcast.cuh"
#include "lockstep/kernels/cuda/primitives/map.cuh"
#include "lockstep/kernels/cuda/shape/shape.cuh"

namespace lockstep {
namespace {

constexpr int kTile = 32;
constexpr int kLevels = 8;                // rows of a tile that a block copies at once
constexpr std::int64_t kLeastExtent = 8;  // of both axes; below it tiles are mostly empty

// Columns are contiguous in the output, rows in the input.
struct TiledForm {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t column_step = 0;  // of the input
  std::int64_t row_step = 0;     // of the output
  FastDivider row_tiles;
  FastDivider column_tiles;
  Digits<2> others;  // offsets in the input and in the output
  unsigned blocks = 0;
};

template <class T>
__global__ void __launch_bounds__(kTile* kLevels)
    transpose_tiles(TiledForm form, const T* __restrict__ x, T* __restrict__ y) {
  __shared__ T tile[kTile][kTile + 1];
  std::uint32_t rest = blockIdx.x;
  const std::int64_t column = std::int64_t{form.column_tiles.split(rest)} * kTile;
  const std::int64_t row = std::int64_t{form.row_tiles.split(rest)} * kTile;
  std::int64_t offsets[2] = {0, 0};
  form.others.add_to(offsets, rest);
  const int lane = threadIdx.x % kTile;
  const int level = threadIdx.x / kTile;
#pragma unroll
  for (int i = level; i < kTile; i += kLevels) {
    const std::int64_t r = row + lane;
    const std::int64_t c = column + i;
    if (r < form.rows && c < form.columns) tile[i][lane] = x[offsets[0] + c * form.column_step + r];
  }
  __syncthreads();
#pragma unroll
  for (int i = level; i < kTile; i += kLevels) {
    const std::int64_t r = row + i;
    const std::int64_t c = column + lane;
    if (r < form.rows && c < form.columns) y[offsets[1] + r * form.row_step + c] = tile[lane][i];
  }
}

// The axis along which the input is contiguous, if exchanging it with the innermost one pays off;
// otherwise the innermost.
std::size_t contiguous_axis(const StridedWalk<1>& walk) {
  const std::size_t last = walk.axes() - 1;
  if (walk.step(last, 0) == 1 || walk.extent(last) < kLeastExtent) return last;
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (walk.step(axis, 0) == 1 && walk.extent(axis) >= kLeastExtent) return axis;
  }
  return last;
}

TiledForm tiled_form(const StridedWalk<1>& walk, std::size_t contiguous) {
  const std::size_t last = walk.axes() - 1;
  TiledForm form;
  form.rows = walk.extent(contiguous);
  form.columns = walk.extent(last);
  form.column_step = walk.step(last, 0);
  std::vector<std::int64_t> extents;
  std::vector<std::array<std::int64_t, 2>> steps;
  std::int64_t below = walk.extent(last);
  std::int64_t count = 1;
  for (std::size_t axis = last; axis-- > 0;) {
    if (axis == contiguous) {
      form.row_step = below;
    } else {
      extents.insert(extents.begin(), walk.extent(axis));
      steps.insert(steps.begin(), {walk.step(axis, 0), below});
      count *= walk.extent(axis);
    }
    below *= walk.extent(axis);
  }
  const std::int64_t row_tiles = (form.rows + kTile - 1) / kTile;
  const std::int64_t column_tiles = (form.columns + kTile - 1) / kTile;
  form.row_tiles = FastDivider(row_tiles);
  form.column_tiles = FastDivider(column_tiles);
  form.others = Digits<2>(extents, steps);
  form.blocks = static_cast<unsigned>(count * row_tiles * column_tiles);
  return form;
}

// Reads the input in the order of a walk that visits every element once.
template <class T>
std::unique_ptr<Kernel> make_permuted(const StridedWalk<1>& walk) {
  const std::int64_t elements = walk.elements();
  if (elements == 0) return make_cuda_kernel([](const Binding&, cudaStream_t) {});
  const std::size_t last = walk.axes() - 1;
  if (last == 0) {
    return make_cuda_kernel([elements](const Binding& binding, cudaStream_t stream) {
      const auto bytes = static_cast<std::size_t>(elements) * sizeof(T);
      copy_bytes(binding.outputs[0], binding.inputs[0], bytes, stream);
    });
  }
  const std::size_t contiguous = contiguous_axis(walk);
  if (contiguous == last) {
    return make_cuda_kernel(
        [read = ReadWalk<T>(walk, 0)](const Binding& binding, cudaStream_t stream) {
          read.launch(binding.in<T>(0), binding.out<T>(0), stream);
        });
  }
  return make_cuda_kernel(
      [form = tiled_form(walk, contiguous)](const Binding& binding, cudaStream_t stream) {
        transpose_tiles<<<form.blocks, kTile * kLevels, 0, stream>>>(form, binding.in<T>(0),
                                                                     binding.out<T>(0));
        check_launch("transpose");
      });
}

std::unique_ptr<Kernel> permuted(DType dtype, const Shape& shape,
                                 const std::vector<std::int64_t>& strides) {
  const StridedWalk<1> walk(shape, {strides});
  return dispatch_element(dtype, [&](auto zero) { return make_permuted<decltype(zero)>(walk); });
}

std::unique_ptr<Kernel> make_transpose(const KernelCall& call) {
  const std::vector<std::int64_t> own = call.in_shape(0).strides();
  std::vector<std::int64_t> strides;
  for (std::int64_t axis : call.attrs().ints("permutation")) {
    strides.push_back(own[static_cast<std::size_t>(axis)]);
  }
  return permuted(call.in_dtype(0), call.out_shape(0), strides);
}

// The axes in memory order, outermost first.
std::vector<int> order_of(const Layout& layout, int rank) {
  std::vector<int> order = layout.order;
  for (int axis = 0; layout.row_major() && axis < rank; ++axis) order.push_back(axis);
  return order;
}

std::unique_ptr<Kernel> make_reorder(const KernelCall& call) {
  const Shape& shape = call.in_shape(0);
  std::vector<std::int64_t> own(static_cast<std::size_t>(shape.rank()), 1);
  std::int64_t below = 1;
  const std::vector<int> from = order_of(call.input(0).layout, shape.rank());
  for (std::size_t i = from.size(); i-- > 0;) {
    own[static_cast<std::size_t>(from[i])] = below;
    below *= shape[from[i]];
  }
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  for (int axis : order_of(call.output(0).layout, shape.rank())) {
    dims.push_back(shape[axis]);
    strides.push_back(own[static_cast<std::size_t>(axis)]);
  }
  return permuted(call.in_dtype(0), Shape(dims), strides);
}

bool supports_transpose(const KernelCall& call) {
  return call.row_major();
}

bool supports_reorder(const KernelCall& call) {
  return call.input(0).layout.blocks.empty() && call.output(0).layout.blocks.empty();
}

}  // namespace

void add_cuda_transpose(KernelLibrary& library) {
  library.add(Op::Transpose,
              {.name = "cuda.transpose", .supports = supports_transpose, .make = make_transpose});
  library.add(Op::Reorder,
              {.name = "cuda.reorder", .supports = supports_reorder, .make = make_reorder});
}

}  // namespace lockstep
