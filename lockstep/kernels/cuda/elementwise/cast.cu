// Casts between all dtypes, and selection between two values: elements are converted or copied, but
// not computed with.
#include <limits>
#include <type_traits>

#include "lockstep/kernels/cuda/elementwise/elementwise.cuh"
#include "lockstep/kernels/cuda/primitives/bitcast.cuh"

namespace lockstep {

bool casts_in_lists(const KernelCall& call);  // cast_list.cu
void add_cuda_cast_list(KernelLibrary& library);

namespace {

// Conversion that is defined for every value: out-of-range numbers saturate, NaN becomes 0 as an
// integer and true as a bool.
template <class To>
struct Convert {
  template <class From>
  __device__ auto operator()(From x) const {
    if constexpr (std::is_same_v<To, bool>) {
      return x != From{0};
    } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
      constexpr To least = std::numeric_limits<To>::min();
      constexpr To most = std::numeric_limits<To>::max();
      if (x != x) return To{0};
      if (x <= static_cast<From>(least)) return least;
      if (x >= static_cast<From>(most)) return most;
      return static_cast<To>(x);
    } else {
      return x;
    }
  }
};

std::unique_ptr<Kernel> make_cast(const KernelCall& call) {
  const std::int64_t count = call.out_shape(0).elements();
  return cuda_dispatch(call.in_dtype(0), [&](auto from) {
    return cuda_dispatch(call.output(0).type.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      return make_map_unary<Convert<To>, From, To>(count, Convert<To>());
    });
  });
}

std::unique_ptr<Kernel> make_select(const KernelCall& call) {
  const StridedWalk<3> walk = operand_walk<3>(call);
  return dispatch_element(call.in_dtype(1),
                          [&](auto zero) { return make_map_select<decltype(zero)>(walk); });
}

}  // namespace

void add_cuda_cast(KernelLibrary& library) {
  add_cuda_cast_list(library);
  library.add(Op::Cast, {.name = "cuda.cast",
                         .supports = same_layout,
                         .make = make_cast,
                         .layouts = follow_operands,
                         .offers = [](const KernelCall& call, std::string_view extra) {
                           return extra == "list" && casts_in_lists(call);
                         }});
  library.add(Op::Select, {.name = "cuda.select",
                           .supports = same_layout,
                           .make = make_select,
                           .layouts = follow_operands});
}

}  // namespace lockstep
