// Comparisons: numbers in, bools out.
#include "lockstep/kernels/cuda/elementwise/elementwise.cuh"

namespace lockstep {
namespace {

// How two numbers compare, as bits, so that an op can accept several results.
constexpr unsigned kLess = 1;
constexpr unsigned kEqual = 2;
constexpr unsigned kGreater = 4;
constexpr unsigned kUnordered = 8;  // one is NaN

// Whether two numbers compare in one of the given ways. One functor for all ops, because each is
// compiled for every type and the kernel is bound by memory anyway.
struct Lie {
  unsigned ways;

  template <class T>
  __device__ bool operator()(T a, T b) const {
    const unsigned way = a < b ? kLess : a == b ? kEqual : a > b ? kGreater : kUnordered;
    return (ways & way) != 0;
  }
};

// The ops' type rules reject bool for ordered comparisons.
std::unique_ptr<Kernel> make_comparison(const KernelCall& call, unsigned ways) {
  const StridedWalk<2> walk = operand_walk<2>(call);
  return cuda_dispatch(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_map_binary<Lie, T, T, bool>(walk, Lie{ways});
  });
}

template <unsigned kWays>
std::unique_ptr<Kernel> make(const KernelCall& call) {
  return make_comparison(call, kWays);
}

}  // namespace

void add_cuda_comparison(KernelLibrary& library) {
  add_elementwise(library, Op::Equal, "cuda.equal", make<kEqual>);
  add_elementwise(library, Op::NotEqual, "cuda.not_equal", make<kLess | kGreater | kUnordered>);
  add_elementwise(library, Op::Less, "cuda.less", make<kLess>);
  add_elementwise(library, Op::LessEqual, "cuda.less_equal", make<kLess | kEqual>);
  add_elementwise(library, Op::Greater, "cuda.greater", make<kGreater>);
  add_elementwise(library, Op::GreaterEqual, "cuda.greater_equal", make<kGreater | kEqual>);
}

}  // namespace lockstep
