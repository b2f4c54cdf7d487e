// Ops that move elements, bitcast to unsigned integers of their size.
#include <cstring>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/reference/walk.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

// Calls f with an unsigned integer of the size of a dtype's elements.
template <class F>
decltype(auto) dispatch_word(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

// A value stored in a dtype of T's size, bitcast to T.
template <class T>
T word_of(DType dtype, double value) {
  T word = {};
  dispatch(dtype, [&](auto zero) {
    const auto element = static_cast<decltype(zero)>(value);
    std::memcpy(&word, &element, std::min(sizeof(word), sizeof(element)));
  });
  return word;
}

// Not inlined: a walk calls it in several places, each of which would be compiled for every size.
template <class T>
[[gnu::noinline]] void copy_run(const T* from, std::int64_t from_step, T* to, std::int64_t to_step,
                                std::int64_t n) {
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
}

std::unique_ptr<Kernel> make_reshape(const KernelCall& call) {
  const std::size_t bytes = call.graph.bytes(call.node.outputs[0]);
  return make_kernel([bytes](const Binding& binding) {
    if (bytes > 0 && binding.inputs[0] != binding.outputs[0]) {
      std::memmove(binding.outputs[0], binding.inputs[0], bytes);
    }
  });
}

// Reads the input with these strides, from this offset, into a row-major output.
std::unique_ptr<Kernel> strided_read(const KernelCall& call, std::vector<std::int64_t> strides,
                                     std::int64_t offset) {
  const Walk<1> walk(call.out_shape(0), {std::move(strides)});
  return dispatch_word(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([walk, offset](const Binding& binding) {
      const T* x = binding.in<T>(0) + offset;
      T* y = binding.out<T>(0);
      walk.run([&](std::int64_t at, std::int64_t n, const auto& offsets) {
        copy_run(x + offsets[0], walk.inner_step(0), y + at, 1, n);
      });
    });
  });
}

// (batch, rows, columns) → (batch, columns, rows), in tiles small enough that the cache lines of
// both sides stay in L1.
std::unique_ptr<Kernel> transpose_matrices(DType dtype, std::int64_t batch, std::int64_t rows,
                                           std::int64_t columns) {
  constexpr std::int64_t kTile = 16;
  return dispatch_word(dtype, [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([batch, rows, columns](const Binding& binding) {
      const T* x = binding.in<T>(0);
      T* y = binding.out<T>(0);
      const std::int64_t strips = (columns + kTile - 1) / kTile;
      const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (rows * kTile + 1));
      parallel_for(batch * strips, grain, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t strip = first; strip < last; ++strip) {
          const T* from = x + strip / strips * rows * columns;
          T* to = y + strip / strips * rows * columns;
          const std::int64_t c_begin = strip % strips * kTile;
          const std::int64_t c_end = std::min(columns, c_begin + kTile);
          for (std::int64_t r_begin = 0; r_begin < rows; r_begin += kTile) {
            const std::int64_t r_end = std::min(rows, r_begin + kTile);
            for (std::int64_t c = c_begin; c < c_end; ++c) {
              for (std::int64_t r = r_begin; r < r_end; ++r) {
                to[c * rows + r] = from[r * columns + c];
              }
            }
          }
        }
      });
    });
  });
}

std::unique_ptr<Kernel> make_transpose(const KernelCall& call) {
  const Shape& from = call.in_shape(0);
  const Ints& permutation = call.attrs().ints("permutation");
  // If the first axes stay and the others are rotated, this is a transposition of matrices.
  const auto rank = static_cast<std::size_t>(from.rank());
  std::size_t front = 0;
  while (front < rank && std::cmp_equal(permutation[front], front)) ++front;
  bool rotation = front < rank;
  for (std::size_t i = front; rotation && i + 1 < rank; ++i) {
    const std::int64_t next =
        permutation[i] + 1 == from.rank() ? static_cast<std::int64_t>(front) : permutation[i] + 1;
    rotation = permutation[i + 1] == next;
  }
  const auto product = [&](std::size_t begin, std::size_t end) {
    std::int64_t count = 1;
    for (std::size_t i = begin; i < end; ++i) count *= from[static_cast<int>(i)];
    return count;
  };
  if (rotation) {
    const auto cut = static_cast<std::size_t>(permutation[front]);
    return transpose_matrices(call.in_dtype(0), product(0, front), product(front, cut),
                              product(cut, rank));
  }
  const std::vector<std::int64_t> own = from.strides();
  std::vector<std::int64_t> strides;
  for (std::int64_t axis : permutation) strides.push_back(own[static_cast<std::size_t>(axis)]);
  return strided_read(call, std::move(strides), 0);
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
  return strided_read(call, broadcast_strides(call.in_shape(0), call.out_shape(0)), 0);
}

std::unique_ptr<Kernel> make_pad(const KernelCall& call) {
  const std::vector<std::int64_t> strides = call.out_shape(0).strides();
  const Ints& before = call.attrs().ints("before");
  const double value = call.attrs().real("value");
  const std::int64_t elements = call.out_shape(0).elements();
  const bool empty = call.in_shape(0).elements() == 0;
  const std::int64_t offset =
      empty ? 0
            : std::inner_product(before.begin(), before.end(), strides.begin(), std::int64_t{0});
  const Walk<1> walk(call.in_shape(0), {strides});
  return dispatch_word(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([=, filling = word_of<T>(call.in_dtype(0), value)](const Binding& binding) {
      const T* x = binding.in<T>(0);
      T* y = binding.out<T>(0);
      parallel_for(elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
        std::fill(y + begin, y + end, filling);
      });
      walk.run([&](std::int64_t at, std::int64_t n, const auto& offsets) {
        copy_run(x + at, 1, y + offset + offsets[0], walk.inner_step(0), n);
      });
    });
  });
}

// Concat and Split: the whole value is (outer, extent, …), and a part is a slice along the second
// axis.
struct ConcatPart {
  std::size_t bytes = 0;   // per row of the part
  std::size_t offset = 0;  // in a row of the whole
};

struct ConcatLayout {
  std::int64_t outer = 1;
  std::size_t bytes = 0;  // per row of the whole
  std::vector<ConcatPart> parts;
};

ConcatLayout concat_layout(const Graph& graph, const std::vector<ValueId>& parts,
                           std::int64_t axis) {
  ConcatLayout layout;
  const Shape& first = graph.type(parts[0]).shape;
  for (int i = 0; i < axis; ++i) layout.outer *= first[i];
  for (ValueId id : parts) {
    const ValueType& type = graph.type(id);
    std::size_t bytes = size_of(type.dtype);
    for (int i = static_cast<int>(axis); i < type.shape.rank(); ++i) {
      bytes *= static_cast<std::size_t>(type.shape[i]);
    }
    layout.parts.push_back({bytes, layout.bytes});
    layout.bytes += bytes;
  }
  return layout;
}

// Calls f(part, offset in the part, offset in the whole, bytes) for every row of every part.
template <class F>
void for_each_part(const ConcatLayout& layout, F&& f) {
  const auto grain = static_cast<std::int64_t>(4 * static_cast<std::size_t>(kGrain) /
                                               std::max<std::size_t>(layout.bytes, 1));
  parallel_for(layout.outer, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end);
         ++row) {
      for (std::size_t part = 0; part < layout.parts.size(); ++part) {
        const ConcatPart& slice = layout.parts[part];
        if (slice.bytes > 0) {
          f(part, row * slice.bytes, row * layout.bytes + slice.offset, slice.bytes);
        }
      }
    }
  });
}

std::unique_ptr<Kernel> make_concat(const KernelCall& call) {
  const ConcatLayout layout =
      concat_layout(call.graph, call.node.inputs, call.attrs().integer("axis"));
  return make_kernel([layout](const Binding& binding) {
    for_each_part(layout, [&](std::size_t part, std::size_t in_part, std::size_t in_whole,
                              std::size_t bytes) {
      std::memcpy(binding.outputs[0] + in_whole, binding.inputs[part] + in_part, bytes);
    });
  });
}

std::unique_ptr<Kernel> make_split(const KernelCall& call) {
  const ConcatLayout layout =
      concat_layout(call.graph, call.node.outputs, call.attrs().integer("axis"));
  return make_kernel([layout](const Binding& binding) {
    for_each_part(layout, [&](std::size_t part, std::size_t in_part, std::size_t in_whole,
                              std::size_t bytes) {
      std::memcpy(binding.outputs[part] + in_part, binding.inputs[0] + in_whole, bytes);
    });
  });
}

// Calls f with a value of the C++ type of an index dtype.
template <class F>
decltype(auto) dispatch_index(DType dtype, F&& f) {
  if (dtype == DType::I32) return f(std::int32_t{});
  if (dtype == DType::U8) return f(std::uint8_t{});
  return f(std::int64_t{});
}

std::unique_ptr<Kernel> make_one_hot(const KernelCall& call) {
  const std::int64_t count = call.in_shape(0).elements();
  const std::int64_t depth = call.attrs().integer("depth");
  const DType dtype = call.output(0).type.dtype;
  return dispatch_index(call.in_dtype(0), [&](auto index) {
    return dispatch_word(dtype, [&](auto zero) {
      using Index = decltype(index);
      using T = decltype(zero);
      return make_kernel([count, depth, one = word_of<T>(dtype, 1)](const Binding& binding) {
        const Index* classes = binding.in<Index>(0);
        T* y = binding.out<T>(0);
        std::fill(y, y + count * depth, T{});
        for (std::int64_t i = 0; i < count; ++i) {
          const auto chosen = static_cast<std::int64_t>(classes[i]);
          if (chosen >= 0 && chosen < depth) y[i * depth + chosen] = one;
        }
      });
    });
  });
}

// Throws on the calling thread, before any work is distributed.
template <class Index>
void expect_inside(const Index* indices, std::int64_t count, std::int64_t rows,
                   std::string_view op) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int64_t>(indices[i]);
    if (index < 0 || index >= rows) {
      fail<DataError>("[{}] index {} (element {} of the indices) is outside a table of {} rows", op,
                      index, i, rows);
    }
  }
}

std::int64_t row_elements(const Shape& table) {
  std::int64_t count = 1;
  for (int axis = 1; axis < table.rank(); ++axis) count *= table[axis];
  return count;
}

std::unique_ptr<Kernel> make_gather(const KernelCall& call) {
  const std::int64_t rows = call.in_shape(0)[0];
  const std::int64_t count = call.in_shape(1).elements();
  const auto bytes =
      static_cast<std::size_t>(row_elements(call.in_shape(0))) * size_of(call.in_dtype(0));
  return dispatch_index(call.in_dtype(1), [&](auto index) {
    using Index = decltype(index);
    return make_kernel([rows, count, bytes](const Binding& binding) {
      const Index* indices = binding.in<Index>(1);
      expect_inside(indices, count, rows, "gather");
      if (bytes == 0) return;
      const auto grain = static_cast<std::int64_t>(4 * static_cast<std::size_t>(kGrain) / bytes);
      parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          std::memcpy(binding.outputs[0] + static_cast<std::size_t>(i) * bytes,
                      binding.inputs[0] + static_cast<std::size_t>(indices[i]) * bytes, bytes);
        }
      });
    });
  });
}

template <class T>
[[gnu::noinline]] void add_run(const T* from, T* to, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(to[i] + from[i]);
}

// Threads divide the columns, so that every row is added to in the order of the indices.
std::unique_ptr<Kernel> make_gather_grad(const KernelCall& call) {
  const std::int64_t rows = call.out_shape(0)[0];
  const std::int64_t count = call.in_shape(1).elements();
  const std::int64_t columns = row_elements(call.out_shape(0));
  return dispatch_index(call.in_dtype(1), [&](auto index) {
    return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
      using Index = decltype(index);
      using T = decltype(zero);
      return make_kernel([rows, count, columns](const Binding& binding) {
        const T* dy = binding.in<T>(0);
        const Index* indices = binding.in<Index>(1);
        T* table = binding.out<T>(0);
        expect_inside(indices, count, rows, "gather_grad");
        parallel_for(rows * columns, kGrain, [&](std::int64_t begin, std::int64_t end) {
          std::fill(table + begin, table + end, T{});
        });
        const std::int64_t grain =
            std::max<std::int64_t>(16, kGrain / std::max<std::int64_t>(count, 1));
        parallel_for(columns, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t row = static_cast<std::int64_t>(indices[i]);
            add_run(dy + i * columns + begin, table + row * columns + begin, end - begin);
          }
        });
      });
    });
  });
}

}  // namespace

void add_reference_shape(KernelLibrary& library) {
  library.add(Op::Reshape, {.name = "reference.reshape", .make = make_reshape});
  library.add(Op::Transpose, {.name = "reference.transpose", .make = make_transpose});
  library.add(Op::Concat, {.name = "reference.concat", .make = make_concat});
  library.add(Op::Split, {.name = "reference.split", .make = make_split});
  library.add(Op::Slice, {.name = "reference.slice", .make = make_slice});
  library.add(Op::Pad, {.name = "reference.pad", .make = make_pad});
  library.add(Op::BroadcastTo, {.name = "reference.broadcast_to", .make = make_broadcast_to});
  library.add(Op::OneHot, {.name = "reference.one_hot", .make = make_one_hot});
  library.add(Op::Gather, {.name = "reference.gather", .make = make_gather});
  library.add(Op::GatherGrad, {.name = "reference.gather_grad", .make = make_gather_grad});
}

}  // namespace lockstep
