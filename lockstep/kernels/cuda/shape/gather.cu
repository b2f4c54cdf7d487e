// Gather: copies rows of a table in vector loads of up to 16 bytes, several in flight per thread.
// An index outside the table is reported as a fault, and its row becomes zeros.
#include "lockstep/kernels/cuda/shape/gather.cuh"

#include <algorithm>

#include "lockstep/kernels/cuda/primitives/bitcast.cuh"
#include "lockstep/kernels/cuda/primitives/walk.cuh"
#include "lockstep/kernels/cuda/shape/shape.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // vector loads in flight per thread
constexpr std::int64_t kMostWords = std::int64_t{1} << 30;

template <class Word, class Index>
__global__ void __launch_bounds__(kThreads)
    gather_rows(const Word* __restrict__ table, const Index* __restrict__ indices,
                Word* __restrict__ y, std::uint32_t words, FastDivider row_words, std::int64_t rows,
                FaultPlace fault) {
  const std::uint32_t first = blockIdx.x * (kThreads * kLoads) + threadIdx.x;
  Word loaded[kLoads];
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const std::uint32_t at = first + load * kThreads;
    loaded[load] = Word{};
    if (at >= words) continue;
    std::uint32_t place = at;
    const std::uint32_t column = row_words.split(place);
    const auto index = static_cast<std::int64_t>(indices[place]);
    if (index >= 0 && index < rows) {
      loaded[load] = table[index * row_words.divisor + column];
    } else if (column == 0) {
      fault.report(index);
    }
  }
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const std::uint32_t at = first + load * kThreads;
    if (at < words) y[at] = loaded[load];
  }
}

// Empty rows: only the indices are checked.
template <class Index>
__global__ void check_indices(const Index* __restrict__ indices, std::int64_t count,
                              std::int64_t rows, FaultPlace fault) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const auto index = static_cast<std::int64_t>(indices[at]);
  if (index < 0 || index >= rows) fault.report(index);
}

template <class Index>
void launch(const Binding& binding, std::int64_t rows, std::int64_t count, std::size_t bytes,
            cudaStream_t stream) {
  const FaultPlace fault(binding);
  if (count == 0) return;
  const Index* indices = binding.in<Index>(1);
  if (bytes == 0) {
    check_indices<<<cuda_blocks(count, kThreads, kMostWords), kThreads, 0, stream>>>(indices, count,
                                                                                     rows, fault);
    return check_launch("check_indices");
  }
  const std::size_t word =
      widest_word(bytes, address_of(binding.inputs[0]), address_of(binding.outputs[0]));
  dispatch_word(word, [&](auto zero) {
    using Word = decltype(zero);
    const auto row_words = static_cast<std::int64_t>(bytes / sizeof(Word));
    const std::int64_t most = std::max<std::int64_t>(1, kMostWords / row_words);
    for (std::int64_t first = 0; first < count; first += most) {
      const std::int64_t words = std::min(most, count - first) * row_words;
      gather_rows<<<cuda_blocks(words, kThreads * kLoads, kMostWords), kThreads, 0, stream>>>(
          binding.in<Word>(0), indices + first, binding.out<Word>(0) + first * row_words,
          static_cast<std::uint32_t>(words), FastDivider(row_words), rows, fault);
      check_launch("gather_rows");
    }
  });
}

std::unique_ptr<Kernel> make_gather(const KernelCall& call) {
  const std::int64_t rows = call.in_shape(0)[0];
  const std::int64_t count = call.in_shape(1).elements();
  const auto bytes =
      static_cast<std::size_t>(row_elements(call.in_shape(0))) * size_of(call.in_dtype(0));
  return dispatch_index(call.in_dtype(1), [&](auto index) -> std::unique_ptr<Kernel> {
    using Index = decltype(index);
    return std::make_unique<TableKernel>(
        rows, [rows, count, bytes](const Binding& binding, cudaStream_t stream) {
          launch<Index>(binding, rows, count, bytes, stream);
        });
  });
}

bool supports(const KernelCall& call) {
  return call.row_major();
}

}  // namespace

void add_cuda_gather(KernelLibrary& library) {
  library.add(Op::Gather, {.name = "cuda.gather", .supports = supports, .make = make_gather});
}

}  // namespace lockstep
