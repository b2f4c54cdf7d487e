// Comparisons: numbers in, bools out.
#include "lockstep/kernels/cuda/elementwise.cuh"

namespace lockstep {
namespace {

struct IsEqual {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return a == b;
  }
};
struct IsNotEqual {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return a != b;
  }
};
struct IsLess {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return a < b;
  }
};
struct IsLessEqual {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct IsGreater {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return a > b;
  }
};
struct IsGreaterEqual {
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return a >= b;
  }
};

// The shape rules keep bool out where it has no order.
template <class F>
std::unique_ptr<Kernel> make_comparison(const KernelCall& call) {
  const StridedWalk<2> walk = operand_walk<2>(call);
  return cuda_dispatch(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_sweep_two<F, T, T, bool>(walk, F());
  });
}

}  // namespace

void add_cuda_comparison(KernelLibrary& library) {
  add_elementwise(library, Op::Equal, "cuda.equal", make_comparison<IsEqual>);
  add_elementwise(library, Op::NotEqual, "cuda.not_equal", make_comparison<IsNotEqual>);
  add_elementwise(library, Op::Less, "cuda.less", make_comparison<IsLess>);
  add_elementwise(library, Op::LessEqual, "cuda.less_equal", make_comparison<IsLessEqual>);
  add_elementwise(library, Op::Greater, "cuda.greater", make_comparison<IsGreater>);
  add_elementwise(library, Op::GreaterEqual, "cuda.greater_equal", make_comparison<IsGreaterEqual>);
}

}  // namespace lockstep
