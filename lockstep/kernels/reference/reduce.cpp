// Reductions. The order of every sum depends only on the shape, never on the number of threads:
// blocks of fixed size are summed in the element type, in lanes that the compiler keeps in vector
// registers, and the blocks' sums are added up in double.
//
// Neighbouring axes of one kind (kept or reduced) are merged, so that nearly every reduction is
// (outer, reduced, inner) → (outer, inner). Any other, such as (reduced, kept, reduced), visits its
// elements one by one.
#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/axis_groups.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/reference/walk.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLanes = 16;       // partial sums in a block
constexpr std::int64_t kBlock = 1024;     // elements of a row that are summed in the element type
constexpr std::int64_t kRows = 64;        // the same for rows that are added as vectors
constexpr std::int64_t kColumns = 64;     // columns that are summed together
constexpr std::int64_t kMostPieces = 16;  // of a long reduction

template <class T>
struct Sum {
  // Integers are added unsigned, so that overflow wraps around.
  using Element = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;
  using Total = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;
  static constexpr Element first() { return 0; }
  template <class V>
  static V join(V a, V b) {
    return a + b;
  }
};

// NaN counts as the largest; the maximum of no elements is the lowest number of the type.
template <class T>
struct Max {
  using Element = T;
  using Total = T;
  static constexpr T first() {
    if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::lowest();
  }
  static T join(T a, T b) { return (b > a) | (b != b) ? b : a; }
};

// (outer, reduced, inner); `direct` if the reduction has this form.
struct Form {
  std::int64_t outer = 1;
  std::int64_t reduced = 1;
  std::int64_t inner = 1;
  bool direct = true;
};

Form form_of(const Shape& shape, const Ints& axes) {
  const AxisGroups groups = group_axes(shape, axes);
  Form form;
  std::size_t next = 0;
  const auto take = [&](bool reduced) {
    const bool fits = next < groups.extents.size() && groups.reduced[next] == reduced;
    return fits ? groups.extents[next++] : std::int64_t{1};
  };
  form.outer = take(false);
  form.reduced = take(true);
  form.inner = take(false);
  form.direct = next == groups.extents.size();
  return form;
}

// The number of pieces into which the reduced axis is split, so that several threads have work if
// the result has few elements. Depends only on the shape.
std::int64_t pieces_of(const Form& form) {
  const std::int64_t by_size = form.reduced * form.inner / (2 * kGrain);
  return std::clamp<std::int64_t>(std::min(by_size, form.reduced), 1, kMostPieces);
}

template <class R, class T>
typename R::Total reduce_run(const T* x, std::int64_t n) {
  using E = typename R::Element;
  typename R::Total total = R::first();
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(n, begin + kBlock);
    std::array<E, kLanes> lanes;
    lanes.fill(R::first());
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        E& slot = lanes[static_cast<std::size_t>(lane)];
        slot = R::join(slot, static_cast<E>(x[i + lane]));
      }
    }
    for (std::size_t lane = 0; i < end; ++i, ++lane) {
      lanes[lane] = R::join(lanes[lane], static_cast<E>(x[i]));
    }
    E block = R::first();
    for (E lane : lanes) block = R::join(block, lane);
    total = R::join(total, static_cast<typename R::Total>(block));
  }
  return total;
}

// Adds up `rows` rows of at most kColumns columns into totals.
template <class R, class T>
void reduce_rows(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t columns,
                 typename R::Total* totals) {
  using E = typename R::Element;
  std::fill(totals, totals + columns, static_cast<typename R::Total>(R::first()));
  for (std::int64_t begin = 0; begin < rows; begin += kRows) {
    const std::int64_t end = std::min(rows, begin + kRows);
    std::array<E, kColumns> block;
    block.fill(R::first());
    for (std::int64_t row = begin; row < end; ++row) {
      const T* line = x + row * stride;
      for (std::int64_t c = 0; c < columns; ++c) {
        E& slot = block[static_cast<std::size_t>(c)];
        slot = R::join(slot, static_cast<E>(line[c]));
      }
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      const E value = block[static_cast<std::size_t>(c)];
      totals[c] = R::join(totals[c], static_cast<typename R::Total>(value));
    }
  }
}

// inner == 1: every result reduces a contiguous range.
template <class R, class T>
KernelFunction reduce_runs(const Form& form, double scale) {
  const std::int64_t pieces = form.outer == 1 ? pieces_of(form) : 1;
  return [form, scale, pieces](const Binding& binding) {
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    const auto finish = [&](typename R::Total total) {
      if constexpr (std::is_floating_point_v<T>) return static_cast<T>(total * scale);
      return static_cast<T>(total);
    };
    if (pieces == 1) {
      const std::int64_t grain =
          std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, form.reduced));
      parallel_for(form.outer, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          y[i] = finish(reduce_run<R>(x + i * form.reduced, form.reduced));
        }
      });
      return;
    }
    std::array<typename R::Total, kMostPieces> partial;
    parallel_for(pieces, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t piece = first; piece < last; ++piece) {
        const std::int64_t begin = form.reduced * piece / pieces;
        const std::int64_t end = form.reduced * (piece + 1) / pieces;
        partial[static_cast<std::size_t>(piece)] = reduce_run<R>(x + begin, end - begin);
      }
    });
    typename R::Total total = R::first();
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      total = R::join(total, partial[static_cast<std::size_t>(piece)]);
    }
    y[0] = finish(total);
  };
}

// inner > 1: every result reduces a column. A task is a block of columns of one piece of the rows.
template <class R, class T>
KernelFunction reduce_columns(const Form& form, double scale) {
  const std::int64_t pieces = form.outer == 1 ? pieces_of(form) : 1;
  const std::int64_t blocks = (form.inner + kColumns - 1) / kColumns;
  return [form, scale, pieces, blocks](const Binding& binding) {
    using Total = typename R::Total;
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    auto* partial = reinterpret_cast<Total*>(binding.workspace);  // (pieces, inner)
    const auto finish = [&](Total total) {
      if constexpr (std::is_floating_point_v<T>) return static_cast<T>(total * scale);
      return static_cast<T>(total);
    };
    const std::int64_t tasks = form.outer * pieces * blocks;
    const std::int64_t work =
        std::max<std::int64_t>(1, form.reduced / pieces * std::min(form.inner, kColumns));
    parallel_for(tasks, std::max<std::int64_t>(1, kGrain / work),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t task = first; task < last; ++task) {
                     const std::int64_t column = task % blocks * kColumns;
                     const std::int64_t piece = task / blocks % pieces;
                     const std::int64_t outer = task / blocks / pieces;
                     const std::int64_t columns = std::min(kColumns, form.inner - column);
                     const std::int64_t begin = form.reduced * piece / pieces;
                     const std::int64_t end = form.reduced * (piece + 1) / pieces;
                     const T* from = x + (outer * form.reduced + begin) * form.inner + column;
                     std::array<Total, kColumns> totals;
                     reduce_rows<R>(from, end - begin, form.inner, columns, totals.data());
                     for (std::int64_t c = 0; c < columns; ++c) {
                       const Total total = totals[static_cast<std::size_t>(c)];
                       if (pieces > 1) {
                         partial[piece * form.inner + column + c] = total;
                       } else {
                         y[outer * form.inner + column + c] = finish(total);
                       }
                     }
                   }
                 });
    if (pieces == 1) return;
    for (std::int64_t c = 0; c < form.inner; ++c) {
      Total total = R::first();
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        total = R::join(total, partial[piece * form.inner + c]);
      }
      y[c] = finish(total);
    }
  };
}

// Any other form: each result reads its elements with strides.
template <class R, class T>
KernelFunction reduce_strided(const KernelCall& call, double scale) {
  const AxisGroups groups = group_axes(call.in_shape(0), call.attrs().ints("axes"));
  const std::vector<std::int64_t> strides = Shape(groups.extents).strides();
  std::vector<std::int64_t> kept_extents, kept_strides, reduced_extents, reduced_strides;
  for (std::size_t i = 0; i < groups.extents.size(); ++i) {
    (groups.reduced[i] ? reduced_extents : kept_extents).push_back(groups.extents[i]);
    (groups.reduced[i] ? reduced_strides : kept_strides).push_back(strides[i]);
  }
  const Walk<1> kept(Shape(kept_extents), {kept_strides});
  const Walk<1> reduced(Shape(reduced_extents), {reduced_strides});
  return [kept, reduced, scale](const Binding& binding) {
    using Total = typename R::Total;
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    kept.run([&](std::int64_t at, std::int64_t n, const auto& origin) {
      for (std::int64_t i = 0; i < n; ++i) {
        const T* from = x + origin[0] + i * kept.inner_step(0);
        Total total = R::first();
        reduced.run_here([&](std::int64_t, std::int64_t count, const auto& offset) {
          for (std::int64_t k = 0; k < count; ++k) {
            const T element = from[offset[0] + k * reduced.inner_step(0)];
            total = R::join(total, static_cast<Total>(element));
          }
        });
        if constexpr (std::is_floating_point_v<T>) {
          y[at + i] = static_cast<T>(total * scale);
        } else {
          y[at + i] = static_cast<T>(total);
        }
      }
    });
  };
}

template <template <class> class R>
std::unique_ptr<Kernel> make_reduction(const KernelCall& call, double scale) {
  const Form form = form_of(call.in_shape(0), call.attrs().ints("axes"));
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      fail<InternalError>("there is no reduction of bool");
    } else {
      if (!form.direct) return make_kernel(reduce_strided<R<T>, T>(call, scale));
      if (form.inner == 1) return make_kernel(reduce_runs<R<T>, T>(form, scale));
      return make_kernel(reduce_columns<R<T>, T>(form, scale));
    }
  });
}

std::unique_ptr<Kernel> make_sum(const KernelCall& call) {
  return make_reduction<Sum>(call, 1.0);
}

// The mean of no elements is 0.
std::unique_ptr<Kernel> make_mean(const KernelCall& call) {
  const std::int64_t from = call.in_shape(0).elements();
  const std::int64_t to = call.out_shape(0).elements();
  const double scale = from > 0 ? static_cast<double>(to) / static_cast<double>(from) : 0.0;
  return make_reduction<Sum>(call, scale);
}

std::unique_ptr<Kernel> make_max(const KernelCall& call) {
  return make_reduction<Max>(call, 1.0);
}

// Space for the sums of the pieces, in double or 64-bit integers.
std::size_t workspace_bytes(const KernelCall& call) {
  const Form form = form_of(call.in_shape(0), call.attrs().ints("axes"));
  const std::int64_t pieces = pieces_of(form);
  if (!form.direct || form.outer != 1 || form.inner == 1 || pieces == 1) return 0;
  return static_cast<std::size_t>(pieces * form.inner) * sizeof(double);
}

// The index of the first largest element along an axis: (outer, extent, inner) → (outer, inner).
// NaN counts as smaller than every number.
std::unique_ptr<Kernel> make_argmax(const KernelCall& call) {
  const int axis = static_cast<int>(call.attrs().integer("axis"));
  const Shape& shape = call.in_shape(0);
  const std::int64_t extent = shape[axis];
  std::int64_t inner = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  const std::int64_t results = call.out_shape(0).elements();
  return dispatch_wide(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([extent, inner, results](const Binding& binding) {
      const T* x = binding.in<T>(0);
      auto* y = binding.out<std::int64_t>(0);
      const std::int64_t grain = std::max<std::int64_t>(1, kGrain / extent);
      parallel_for(results, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const T* from = x + i / inner * extent * inner + i % inner;
          std::int64_t at = 0;
          T best = from[0];
          for (std::int64_t k = 1; k < extent; ++k) {
            const T value = from[k * inner];
            if (value > best || (best != best && value == value)) {
              best = value;
              at = k;
            }
          }
          y[i] = at;
        }
      });
    });
  });
}

}  // namespace

void add_reference_reduce(KernelLibrary& library) {
  library.add(
      Op::ReduceSum,
      {.name = "reference.reduce_sum", .make = make_sum, .workspace_bytes = workspace_bytes});
  library.add(
      Op::ReduceMean,
      {.name = "reference.reduce_mean", .make = make_mean, .workspace_bytes = workspace_bytes});
  library.add(
      Op::ReduceMax,
      {.name = "reference.reduce_max", .make = make_max, .workspace_bytes = workspace_bytes});
  library.add(Op::ArgMax, {.name = "reference.argmax", .make = make_argmax});
}

}  // namespace lockstep
