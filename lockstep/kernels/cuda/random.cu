// Dropout: the mask is drawn from Philox (base/random.h) where it is applied, and never stored. A
// block of four words is four neighbours of a sample, and a thread draws several blocks: what it
// costs in registers hides behind the loads.
#include <cmath>

#include "lockstep/base/random.h"
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/elements.cuh"
#include "lockstep/kernels/cuda/walk.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 2;  // blocks of four of a thread
constexpr int kWords = 4;  // of a block
constexpr std::int64_t kMostGroups = std::int64_t{1} << 31;

// Four random words for a key and a 128-bit counter, as philox() of base/random.h.
__device__ __forceinline__ uint4 draw(PhiloxKey key, uint4 counter) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t a_high = __umulhi(0xD2511F53u, counter.x);
    const std::uint32_t a_low = 0xD2511F53u * counter.x;
    const std::uint32_t b_high = __umulhi(0xCD9E8D57u, counter.z);
    const std::uint32_t b_low = 0xCD9E8D57u * counter.z;
    counter = make_uint4(b_high ^ counter.y ^ key.low, b_low, a_high ^ counter.w ^ key.high, a_low);
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

struct Mask {
  std::int64_t samples = 0;
  std::int64_t size = 0;    // elements of a sample
  std::int64_t groups = 0;  // of four, of a sample
  PhiloxKey key;
  // to_unit_float(word) < rate, said of the word's upper 24 bits.
  std::int32_t threshold = 0;
  float scale = 1;

  explicit Mask(const KernelCall& call) {
    const Shape& shape = call.in_shape(0);
    const double rate = call.attrs().real("rate");
    samples = shape[0];
    size = shape[0] == 0 ? 0 : shape.elements() / shape[0];
    groups = (size + kWords - 1) / kWords;
    key = make_key(static_cast<std::uint64_t>(call.attrs().integer("seed")),
                   static_cast<std::uint64_t>(call.attrs().integer("key")));
    threshold = static_cast<std::int32_t>(std::ceil(rate * 16777216.0));
    scale = static_cast<float>(1.0 / (1.0 - rate));
  }
};

// The word's place in its block is the element's.
__device__ __forceinline__ std::uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// `in_packs`: samples are whole groups, and groups lie on their boundaries.
template <class T>
__global__ void __launch_bounds__(kThreads)
    drop(const T* x, const std::int64_t* __restrict__ state, T* y, Mask mask, FastDivider sample,
         std::uint32_t groups, bool in_packs) {
  const auto step = static_cast<std::uint64_t>(state[0]);
  const std::int64_t first_sample = state[1];
  const std::uint32_t first = blockIdx.x * (kThreads * kLoads) + threadIdx.x;
  Pack<T, kWords> loaded[kLoads];
  std::int64_t begin[kLoads];
  int count[kLoads];
  uint4 words[kLoads];
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    const std::uint32_t group = first + load * kThreads;
    count[load] = 0;
    if (group >= groups) continue;
    std::uint32_t s = group;
    const std::uint32_t block = sample.split(s);
    const std::int64_t within = std::int64_t{block} * kWords;
    begin[load] = s * mask.size + within;
    count[load] = static_cast<int>(min(mask.size - within, std::int64_t{kWords}));
    if (in_packs) {
      loaded[load] = load_pack<T, kWords>(x + begin[load]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (i < count[load]) loaded[load].items[i] = x[begin[load] + i];
      }
    }
    words[load] = draw(mask.key, make_uint4(block, static_cast<std::uint32_t>(first_sample + s),
                                            static_cast<std::uint32_t>(step),
                                            static_cast<std::uint32_t>(step >> 32)));
  }
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    if (count[load] == 0) continue;
    Pack<T, kWords> result;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const auto number = static_cast<std::int32_t>(word_of(words[load], i) >> 8);
      const float kept = widen(loaded[load].items[i]) * mask.scale;
      result.items[i] = narrow<T>(number < mask.threshold ? 0.0f : kept);
    }
    if (in_packs) {
      store_pack(y + begin[load], result);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (i < count[load]) y[begin[load] + i] = result.items[i];
      }
    }
  }
}

template <class T>
std::unique_ptr<Kernel> make_dropout_of(const KernelCall& call) {
  return make_cuda_kernel([mask = Mask(call)](const Binding& binding, cudaStream_t stream) {
    const std::int64_t groups = mask.samples * mask.groups;
    if (groups == 0) return;
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    const bool in_packs =
        mask.size % kWords == 0 && is_aligned<T, kWords>(x) && is_aligned<T, kWords>(y);
    drop<<<cuda_blocks(groups, kThreads * kLoads, kMostGroups), kThreads, 0, stream>>>(
        x, binding.in<std::int64_t>(1), y, mask, FastDivider(mask.groups),
        static_cast<std::uint32_t>(groups), in_packs);
    check_launch("dropout");
  });
}

std::unique_ptr<Kernel> make_dropout(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_dropout_of<decltype(zero)>(call); });
}

bool supports(const KernelCall& call) {
  const Mask mask(call);
  return has_cuda_floats(call) && call.row_major() && mask.samples * mask.groups < kMostGroups;
}

}  // namespace

void add_cuda_random(KernelLibrary& library) {
  library.add(Op::Dropout, {.name = "cuda.dropout", .supports = supports, .make = make_dropout});
}

}  // namespace lockstep
