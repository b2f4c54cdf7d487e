// Reductions. Neighbouring axes of one kind (kept or reduced) are merged, so that nearly every
// reduction is (outer, reduced, inner) → (outer, inner): rows if inner is 1, columns otherwise. Any
// other, such as (reduced, kept, reduced), computes the offset of each element.
//
// If there are few results of many elements each, the elements are split into pieces, whose totals
// go to the workspace and are reduced in a second launch. Results do not depend on the GPU.
#include <algorithm>
#include <bit>

#include "lockstep/kernels/axis_groups.h"
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/generic_types.h"
#include "lockstep/kernels/cuda/primitives/reduction.cuh"
#include "lockstep/kernels/cuda/primitives/same_layout.h"

namespace lockstep {
namespace {

constexpr std::int64_t kManyBlocks = 528;   // enough for all multiprocessors: four for each of 132
constexpr std::int64_t kLongRow = 4096;     // elements from which on a row gets a block;
constexpr std::int64_t kFewRows = 1024;     // with fewer rows than this, already from
constexpr std::int64_t kMiddlingRow = 512;  // this many elements on
constexpr std::int64_t kLeastColumnRows = 8;  // rows per thread in a piece of columns
constexpr std::int64_t kMostPieces = 2048;    // what a second launch reduces at once
constexpr std::int64_t kMostIndices = std::int64_t{1} << 31;

// (outer, reduced, inner); `direct` if the reduction has this form.
struct Form {
  std::int64_t outer = 1;
  std::int64_t reduced = 1;
  std::int64_t inner = 1;
  bool direct = true;

  explicit Form(const AxisGroups& groups) {
    std::size_t next = 0;
    const auto take = [&](bool wanted) {
      const bool fits = next < groups.extents.size() && groups.reduced[next] == wanted;
      return fits ? groups.extents[next++] : std::int64_t{1};
    };
    outer = take(false);
    reduced = take(true);
    inner = take(false);
    direct = next == groups.extents.size();
  }
  Form(std::int64_t outer, std::int64_t reduced, std::int64_t inner)
      : outer(outer), reduced(reduced), inner(inner) {}
};

std::int64_t quotient_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// The smallest power of two that is at least n, from 1 to 32.
int lanes_for(std::int64_t n) {
  const auto clamped = static_cast<unsigned>(std::clamp<std::int64_t>(n, 1, 32));
  return static_cast<int>(std::bit_ceil(clamped));
}

// How rows are divided: each among a few threads, or into pieces, one per block.
struct RowPlan {
  bool in_blocks = false;
  int pieces = 1;
  std::int64_t length = 0;  // of a piece, a multiple of 16

  explicit RowPlan(const Form& form) {
    in_blocks = form.reduced >= kLongRow || (form.reduced >= kMiddlingRow && form.outer < kFewRows);
    if (!in_blocks) return;
    constexpr std::int64_t kLeast = kReduceThreads * kReduceLoads * 4;
    const std::int64_t wanted = kManyBlocks / std::max<std::int64_t>(form.outer, 1);
    const std::int64_t most = std::clamp<std::int64_t>(wanted, 1, form.reduced / kLeast + 1);
    length = quotient_up(quotient_up(form.reduced, most), 16) * 16;
    pieces = static_cast<int>(quotient_up(form.reduced, length));
  }
};

ColumnTiles column_tiles(const Form& form, int v, int most_pieces) {
  ColumnTiles tiles;
  const std::int64_t vectors = form.inner / v;
  tiles.across = lanes_for(vectors);
  tiles.tiles = quotient_up(vectors, tiles.across);
  const std::int64_t depth = kReduceThreads / tiles.across;
  const std::int64_t wanted = kManyBlocks / std::max<std::int64_t>(form.outer * tiles.tiles, 1);
  const std::int64_t useful = form.reduced / (depth * kLeastColumnRows);
  const std::int64_t most =
      std::clamp<std::int64_t>(std::min<std::int64_t>(wanted, most_pieces), 1, useful + 1);
  tiles.rows = std::max<std::int64_t>(1, quotient_up(form.reduced, most));
  tiles.pieces = static_cast<int>(std::max<std::int64_t>(1, quotient_up(form.reduced, tiles.rows)));
  return tiles;
}

template <class R, class X, class Y>
void launch_rows(const X* x, Y* y, const Form& form, double scale, cudaStream_t stream) {
  constexpr int V = kCommonVectorSize<X>;
  const RowPlan plan(form);
  const bool vectorised = form.reduced % V == 0 && is_aligned<X, V>(x);
  if (plan.in_blocks) {
    const auto blocks = static_cast<unsigned>(form.outer * plan.pieces);
    if (vectorised) {
      reduce_long_rows<R, V><<<blocks, kReduceThreads, 0, stream>>>(x, y, form.reduced, plan.pieces,
                                                                    plan.length, scale);
    } else {
      reduce_long_rows<R, 1><<<blocks, kReduceThreads, 0, stream>>>(x, y, form.reduced, plan.pieces,
                                                                    plan.length, scale);
    }
    check_launch("reduce_long_rows");
    return;
  }
  const int lanes = lanes_for(quotient_up(form.reduced, kReduceLoads * (vectorised ? V : 1)));
  const auto blocks = static_cast<unsigned>(quotient_up(form.outer * lanes, kReduceThreads));
  if (vectorised) {
    reduce_short_rows<R, V>
        <<<blocks, kReduceThreads, 0, stream>>>(x, y, form.outer, form.reduced, lanes, scale);
  } else {
    reduce_short_rows<R, 1>
        <<<blocks, kReduceThreads, 0, stream>>>(x, y, form.outer, form.reduced, lanes, scale);
  }
  check_launch("reduce_short_rows");
}

template <class R, int V, class X, class Y>
void launch_columns(const X* x, Y* y, const Form& form, const ColumnTiles& tiles, double scale,
                    cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles.blocks(form.outer));
  reduce_columns<R, V>
      <<<blocks, kReduceThreads, 0, stream>>>(x, y, form.reduced, form.inner, tiles, scale);
  check_launch("reduce_columns");
}

// inner == 1: every result reduces a contiguous range.
template <template <class> class R, class T>
CudaFunction reduce_rows(const Form& form, double scale) {
  using Total = typename R<T>::Total;
  return [form, scale](const Binding& binding, cudaStream_t stream) {
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    const int pieces = RowPlan(form).pieces;
    if (pieces == 1) return launch_rows<R<T>>(x, y, form, scale, stream);
    auto* partial = reinterpret_cast<Total*>(binding.workspace);
    launch_rows<R<T>>(x, partial, form, 1.0, stream);
    launch_rows<R<Total>>(partial, y, Form(form.outer, pieces, 1), scale, stream);
  };
}

// The tiles of columns for vectors and for single elements. Both split the rows in the same way.
struct ColumnPlan {
  ColumnTiles vectors;
  ColumnTiles singles;

  ColumnPlan(const Form& form, int v) {
    const bool fits = form.inner % v == 0;
    const ColumnTiles first = column_tiles(form, fits ? v : 1, kManyBlocks);
    singles = column_tiles(form, 1, 1);
    singles.rows = first.rows;
    singles.pieces = first.pieces;
    vectors = first;
  }
};

// inner > 1: every result reduces a column.
template <template <class> class R, class T>
CudaFunction reduce_columns_of(const Form& form, double scale) {
  constexpr int V = kCommonVectorSize<T>;
  using Total = typename R<T>::Total;
  return [form, scale, plan = ColumnPlan(form, V)](const Binding& binding, cudaStream_t stream) {
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    const auto first = [&](auto* to, double by) {
      if (form.inner % V == 0 && is_aligned<T, V>(x)) {
        launch_columns<R<T>, V>(x, to, form, plan.vectors, by, stream);
      } else {
        launch_columns<R<T>, 1>(x, to, form, plan.singles, by, stream);
      }
    };
    if (plan.vectors.pieces == 1) return first(y, scale);
    auto* partial = reinterpret_cast<Total*>(binding.workspace);  // (outer, pieces, inner)
    first(partial, 1.0);
    const Form rest(form.outer, plan.vectors.pieces, form.inner);
    launch_columns<R<Total>, 1>(partial, y, rest, column_tiles(rest, 1, 1), scale, stream);
  };
}

struct ScatteredPlan {
  ScatteredAxes axes;
  int lanes = 1;

  explicit ScatteredPlan(const AxisGroups& groups) {
    const std::vector<std::int64_t> strides = Shape(groups.extents).strides();
    std::vector<std::int64_t> kept, reduced;
    std::vector<std::array<std::int64_t, 1>> kept_strides, reduced_strides;
    for (std::size_t i = 0; i < groups.extents.size(); ++i) {
      (groups.reduced[i] ? reduced : kept).push_back(groups.extents[i]);
      (groups.reduced[i] ? reduced_strides : kept_strides).push_back({strides[i]});
    }
    const std::int64_t results = Shape(kept).elements();
    const std::int64_t count = Shape(reduced).elements();
    axes.results = static_cast<std::uint32_t>(results);
    axes.count = static_cast<std::uint32_t>(count);
    if (results == 0 || count == 0) return;
    axes.kept = Digits<1>(kept, kept_strides);
    axes.reduced = Digits<1>(reduced, reduced_strides);
    lanes = groups.reduced.back() ? lanes_for(quotient_up(count, 4)) : 1;
    const std::int64_t teams = kManyBlocks * kReduceThreads / lanes;
    const std::int64_t useful = std::min(count / (lanes * 8) + 1, kMostPieces);
    const std::int64_t most = std::clamp<std::int64_t>(teams / results, 1, useful);
    axes.length = static_cast<std::uint32_t>(quotient_up(count, most));
    axes.pieces = static_cast<std::uint32_t>(quotient_up(count, axes.length));
  }
};

template <template <class> class R, class T>
CudaFunction reduce_any(const AxisGroups& groups, double scale) {
  using Total = typename R<T>::Total;
  return [plan = ScatteredPlan(groups), scale](const Binding& binding, cudaStream_t stream) {
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    const ScatteredAxes& axes = plan.axes;
    const std::int64_t threads = std::int64_t{axes.results} * axes.pieces * plan.lanes;
    const auto blocks = static_cast<unsigned>(quotient_up(threads, kReduceThreads));
    if (axes.pieces == 1) {
      reduce_scattered<R<T>><<<blocks, kReduceThreads, 0, stream>>>(x, y, axes, plan.lanes, scale);
      return check_launch("reduce_scattered");
    }
    auto* partial = reinterpret_cast<Total*>(binding.workspace);
    reduce_scattered<R<T>>
        <<<blocks, kReduceThreads, 0, stream>>>(x, partial, axes, plan.lanes, 1.0);
    check_launch("reduce_scattered");
    launch_rows<R<Total>>(partial, y, Form(axes.results, axes.pieces, 1), scale, stream);
  };
}

// Many short columns: in vectors if aligned, otherwise like any other reduction.
template <template <class> class R, class T>
CudaFunction reduce_short_columns_of(const Form& form, const AxisGroups& groups, double scale) {
  constexpr int V = kCommonVectorSize<T>;
  return [form, scale, one_by_one = reduce_any<R, T>(groups, scale)](const Binding& binding,
                                                                     cudaStream_t stream) {
    const T* x = binding.in<T>(0);
    if (form.inner % V != 0 || !is_aligned<T, V>(x)) return one_by_one(binding, stream);
    const std::int64_t threads = form.outer * (form.inner / V);
    const auto blocks = static_cast<unsigned>(quotient_up(threads, kReduceThreads));
    reduce_short_columns<R<T>, V><<<blocks, kReduceThreads, 0, stream>>>(
        x, binding.out<T>(0), form.outer, form.reduced, form.inner, scale);
    check_launch("reduce_short_columns");
  };
}

AxisGroups groups_of(const KernelCall& call) {
  return group_axes(call.in_shape(0), call.attrs().ints("axes"));
}

enum class Way { Nothing, Rows, Columns, Scattered };

// Many short columns are assigned to one thread each: a block would have too little to do. Generic
// types use the one kernel that handles all axes.
Way way_of(const KernelCall& call, const Form& form) {
  constexpr std::int64_t kShort = 128;
  constexpr std::int64_t kMany = 65536;
  const std::int64_t results = call.out_shape(0).elements();
  if (results == 0) return Way::Nothing;
  if (!form.direct || is_generic_type(call.in_dtype(0))) return Way::Scattered;
  if (form.inner == 1) return Way::Rows;
  const bool small = call.in_shape(0).elements() < kMostIndices;
  const bool short_columns = form.outer > 1 && form.reduced < kShort && results >= kMany;
  return small && short_columns ? Way::Scattered : Way::Columns;
}

template <template <class> class R>
std::unique_ptr<Kernel> make_reduction(const KernelCall& call, double scale) {
  const AxisGroups groups = groups_of(call);
  const Form form(groups);
  const Way way = way_of(call, form);
  return cuda_dispatch(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if (way == Way::Nothing) return make_cuda_kernel([](const Binding&, cudaStream_t) {});
    if constexpr (std::is_same_v<T, bool>) {
      fail<InternalError>("[cuda] there is no reduction of {}", name_of(call.in_dtype(0)));
    } else if constexpr (kGenericType<T>) {
      return make_cuda_kernel(reduce_any<R, T>(groups, scale));
    } else {
      if (way == Way::Rows) return make_cuda_kernel(reduce_rows<R, T>(form, scale));
      if (way == Way::Columns) return make_cuda_kernel(reduce_columns_of<R, T>(form, scale));
      if (form.direct) {
        return make_cuda_kernel(reduce_short_columns_of<R, T>(form, groups, scale));
      }
      return make_cuda_kernel(reduce_any<R, T>(groups, scale));
    }
  });
}

std::unique_ptr<Kernel> make_sum(const KernelCall& call) {
  return make_reduction<SumOf>(call, 1.0);
}

// The mean of no elements is 0.
std::unique_ptr<Kernel> make_mean(const KernelCall& call) {
  const std::int64_t from = call.in_shape(0).elements();
  const std::int64_t to = call.out_shape(0).elements();
  const double scale = from > 0 ? static_cast<double>(to) / static_cast<double>(from) : 0.0;
  return make_reduction<SumOf>(call, scale);
}

std::unique_ptr<Kernel> make_max(const KernelCall& call) {
  return make_reduction<MaxOf>(call, 1.0);
}

// For the totals of all pieces, at most eight bytes each.
std::size_t workspace_bytes(const KernelCall& call) {
  const AxisGroups groups = groups_of(call);
  const Form form(groups);
  const Way way = way_of(call, form);
  const int v = kVectorBytes / static_cast<int>(size_of(call.in_dtype(0)));
  std::int64_t pieces = 1;
  if (way == Way::Rows) pieces = RowPlan(form).pieces;
  if (way == Way::Columns) pieces = ColumnPlan(form, v).vectors.pieces;
  if (way == Way::Scattered) pieces = ScatteredPlan(groups).axes.pieces;
  if (pieces == 1) return 0;
  return static_cast<std::size_t>(call.out_shape(0).elements() * pieces) * sizeof(double);
}

// A reduction over all elements accepts any order of axes; scattered ones need 32-bit indices.
bool supports(const KernelCall& call) {
  const Form form(groups_of(call));
  const Layout& layout = call.input(0).layout;
  const bool whole = form.direct && form.outer == 1 && form.inner == 1 && layout.blocks.empty();
  if (!whole && !call.row_major()) return false;
  const bool any_size = form.direct && !is_generic_type(call.in_dtype(0));
  return any_size || call.in_shape(0).elements() < kMostIndices;
}

NodeLayouts layouts(const KernelCall& call) {
  const Form form(groups_of(call));
  const bool whole = form.direct && form.outer == 1 && form.inner == 1;
  return whole ? keep_input_layout(call) : NodeLayouts();
}

void add(KernelLibrary& library, Op op, std::string_view name,
         std::unique_ptr<Kernel> (*make)(const KernelCall&)) {
  library.add(op, {.name = name,
                   .supports = supports,
                   .make = make,
                   .workspace_bytes = workspace_bytes,
                   .layouts = layouts});
}

}  // namespace

void add_cuda_reduce(KernelLibrary& library) {
  add(library, Op::ReduceSum, "cuda.reduce_sum", make_sum);
  add(library, Op::ReduceMean, "cuda.reduce_mean", make_mean);
  add(library, Op::ReduceMax, "cuda.reduce_max", make_max);
  add_cuda_argmax(library);
}

}  // namespace lockstep
