// Reorder: copies elements to another layout, by tables of the elements' offsets.
#include <cstring>
#include <memory>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

using Table = std::vector<std::int64_t>;

// Layout::offsets of both sides.
struct Places {
  Shape shape;
  std::vector<Table> from;
  std::vector<Table> to;
};

template <class T>
void move_rows(const Places& places, const T* x, T* y, std::int64_t begin, std::int64_t end) {
  const std::size_t last = places.from.size() - 1;
  const Table& from = places.from[last];
  const Table& to = places.to[last];
  for (std::int64_t row = begin; row < end; ++row) {
    std::int64_t source = 0;
    std::int64_t target = 0;
    std::int64_t rest = row;
    for (std::size_t axis = last; axis-- > 0;) {
      const std::int64_t extent = places.shape[static_cast<int>(axis)];
      const auto index = static_cast<std::size_t>(rest % extent);
      rest /= extent;
      source += places.from[axis][index];
      target += places.to[axis][index];
    }
    for (std::size_t i = 0; i < from.size(); ++i) y[target + to[i]] = x[source + from[i]];
  }
}

// Moves elements without interpreting them; T is the unsigned integer of their size.
template <class T>
std::unique_ptr<Kernel> make_reorder_of(const KernelCall& call) {
  // A scalar is treated as a row of one element.
  const Shape shape = call.in_shape(0).rank() == 0 ? Shape{1} : call.in_shape(0);
  const auto places = std::make_shared<const Places>(
      Places{shape, call.input(0).layout.offsets(shape), call.output(0).layout.offsets(shape)});
  const std::size_t bytes = call.graph.bytes(call.node.outputs[0]);
  const bool padded = bytes > static_cast<std::size_t>(shape.elements()) * sizeof(T);
  return make_kernel([places, bytes, padded](const Binding& binding) {
    const Shape& extents = places->shape;
    if (extents.elements() == 0) return;
    if (padded) std::memset(binding.outputs[0], 0, bytes);
    parallel_for(extents.elements() / extents[-1], grain_for(2 * extents[-1]),
                 [&](std::int64_t begin, std::int64_t end) {
                   move_rows(*places, binding.in<T>(0), binding.out<T>(0), begin, end);
                 });
  });
}

std::unique_ptr<Kernel> make_reorder(const KernelCall& call) {
  switch (size_of(call.in_dtype(0))) {
    case 1:
      return make_reorder_of<std::uint8_t>(call);
    case 2:
      return make_reorder_of<std::uint16_t>(call);
    case 4:
      return make_reorder_of<std::uint32_t>(call);
    default:
      return make_reorder_of<std::uint64_t>(call);
  }
}

}  // namespace

void add_reference_layout(KernelLibrary& library) {
  library.add(Op::Reorder, {.name = "reference.reorder",
                            .supports = [](const KernelCall&) { return true; },
                            .make = make_reorder});
}

}  // namespace lockstep
