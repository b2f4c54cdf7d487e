// Softmax over the last axis, and its gradient (defined in kernels/softmax_rows.h).
#include "lockstep/kernels/cuda/softmax/softmax.cuh"

namespace lockstep {

void add_cuda_cross_entropy(KernelLibrary& library);  // cross_entropy.cu

namespace {

template <class T, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock) softmax(const ClassRows r, const T* x, T* y) {
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const T* from = x + row * r.classes;
    const RowTotal total = total_of<Team, N>(from, r.classes);
    write_softmax<Team, N>(from, y + row * r.classes, r.classes, total);
  }
}

// dx = y · (dy - Σ dy y); dx may be dy or y.
template <class T, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock)
    softmax_grad(const ClassRows r, const T* dy, const T* y, T* dx) {
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const std::int64_t begin = row * r.classes;
    float sum = 0;
    for_each_vector<Team, N>(r.classes, [&](std::int64_t at) {
      float gradients[N];
      float results[N];
      load_floats<T, N>(dy + begin + at, gradients);
      load_floats<T, N>(y + begin + at, results);
#pragma unroll
      for (int i = 0; i < N; ++i) sum = fmaf(gradients[i], results[i], sum);
    });
    const float along = Team::sum(sum);
    for_each_vector<Team, N>(r.classes, [&](std::int64_t at) {
      float gradients[N];
      float results[N];
      load_floats<T, N>(dy + begin + at, gradients);
      load_floats<T, N>(y + begin + at, results);
#pragma unroll
      for (int i = 0; i < N; ++i) results[i] *= gradients[i] - along;
      store_floats<T, N>(dx + begin + at, results);
    });
  }
}

template <class T>
std::unique_ptr<Kernel> make_softmax_of(const KernelCall& call) {
  return make_cuda_kernel([r = ClassRows(call.in_shape(0))](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0) return;
    const bool aligned = all_on_vector_boundaries(b.in<T>(0), b.out<T>(0));
    with_team<T>(r.classes, aligned, [&](auto team, auto width) {
      using Team = decltype(team);
      softmax<T, Team, decltype(width)::value>
          <<<team_blocks<Team>(r.rows), kTeamBlock, 0, stream>>>(r, b.in<T>(0), b.out<T>(0));
    });
    check_launch("softmax");
  });
}

template <class T>
std::unique_ptr<Kernel> make_softmax_grad_of(const KernelCall& call) {
  return make_cuda_kernel([r = ClassRows(call.in_shape(0))](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0) return;
    const bool aligned = all_on_vector_boundaries(b.in<T>(0), b.in<T>(1), b.out<T>(0));
    with_team<T>(r.classes, aligned, [&](auto team, auto width) {
      using Team = decltype(team);
      softmax_grad<T, Team, decltype(width)::value>
          <<<team_blocks<Team>(r.rows), kTeamBlock, 0, stream>>>(r, b.in<T>(0), b.in<T>(1),
                                                                 b.out<T>(0));
    });
    check_launch("softmax_grad");
  });
}

std::unique_ptr<Kernel> make_softmax(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_softmax_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_softmax_grad(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_softmax_grad_of<decltype(zero)>(call); });
}

}  // namespace

void add_cuda_softmax(KernelLibrary& library) {
  library.add(Op::Softmax,
              {.name = "cuda.softmax", .supports = supports_class_rows, .make = make_softmax});
  library.add(
      Op::SoftmaxGrad,
      {.name = "cuda.softmax_grad", .supports = supports_class_rows, .make = make_softmax_grad});
  add_cuda_cross_entropy(library);
}

}  // namespace lockstep
