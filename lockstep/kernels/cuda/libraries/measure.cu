#include <algorithm>
#include <array>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/libraries/measure.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;

// The 32-bit finaliser of MurmurHash3: every bit of the counter affects every bit of the result.
__device__ std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

template <class T>
__global__ void fill_kernel(T* data, std::int64_t count, std::uint32_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const std::uint32_t bits = mixed(static_cast<std::uint32_t>(i) + seed * 0x9e3779b9u);
    data[i] = static_cast<T>(static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f);
  }
}

}  // namespace

Scratch::Scratch(std::size_t bytes) {
  void* data = nullptr;
  if (cudaMalloc(&data, std::max<std::size_t>(bytes, 256)) == cudaSuccess) {
    data_ = static_cast<std::byte*>(data);
  } else {
    cudaGetLastError();
  }
}

Scratch::~Scratch() {
  cudaFree(data_);
}

void fill_random(std::byte* data, DType dtype, std::int64_t count, std::uint32_t seed,
                 cudaStream_t stream) {
  if (count == 0) return;
  cuda_dispatch_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    fill_kernel<<<cuda_blocks(count, kThreads, 4096), kThreads, 0, stream>>>(
        reinterpret_cast<T*>(data), count, seed);
  });
  check_launch("filling memory for a measurement");
}

std::size_t lanes_to_measure(const CudaContext& context) {
  return parse_cuda_name(context.device().name()).part < 0 ? 1 : 2;
}

Stopwatch::Stopwatch(std::size_t lanes) : streams_(lanes) {
  for (cudaStream_t& stream : streams_) {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  }
  check_cuda(cudaEventCreate(&begin_), "creating an event");
  check_cuda(cudaEventCreate(&end_), "creating an event");
  check_cuda(cudaEventCreateWithFlags(&between_, cudaEventDisableTiming), "creating an event");
}

Stopwatch::~Stopwatch() {
  cudaEventDestroy(between_);
  cudaEventDestroy(end_);
  cudaEventDestroy(begin_);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

// The time of what is issued to the first lane, in milliseconds.
std::optional<float> Stopwatch::timed(const std::function<bool()>& issue) {
  check_cuda(cudaEventRecord(begin_, stream()), "recording an event");
  if (!issue()) return {};
  check_cuda(cudaEventRecord(end_, stream()), "recording an event");
  check_cuda(cudaEventSynchronize(end_), "measuring");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "measuring");
  return milliseconds;
}

// Issues so many runs on every lane; all lanes begin and end with the first one.
bool Stopwatch::issue(const Run& run, int turns) {
  const auto wait = [&](cudaStream_t waiting, cudaStream_t awaited) {
    check_cuda(cudaEventRecord(between_, awaited), "recording an event");
    check_cuda(cudaStreamWaitEvent(waiting, between_, 0), "waiting for an event");
  };
  bool works = true;
  for (std::size_t lane = 1; lane < streams_.size(); ++lane) wait(streams_[lane], stream());
  for (int turn = 0; turn < turns && works; ++turn) {
    for (std::size_t lane = 0; lane < streams_.size() && works; ++lane) {
      works = run(streams_[lane], lane);
    }
  }
  for (std::size_t lane = 1; lane < streams_.size(); ++lane) wait(stream(), streams_[lane]);
  return works;
}

// Several turns if there are several lanes, so that runs of different lanes overlap.
std::optional<float> Stopwatch::once(const Run& run) {
  const int turns = streams_.size() == 1 ? 1 : 3;
  const std::optional<float> time = timed([&] { return issue(run, turns); });
  if (!time) return {};
  return *time / static_cast<float>(static_cast<std::size_t>(turns) * streams_.size());
}

// The time per run in milliseconds of many consecutive runs in a CUDA graph, without the host.
std::optional<float> Stopwatch::recorded(const Run& run) {
  constexpr int kRow = 16;
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
             "starting a recording");
  bool works = issue(run, kRow);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream(), &graph), "recording");
  cudaGraphExec_t row = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&row, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(made, "instantiating a recording");
  const auto launch = [&] { return works && cudaGraphLaunch(row, stream()) == cudaSuccess; };
  std::array<float, 3> times = {};
  works = timed(launch).has_value();
  for (float& time : times) time = timed(launch).value_or(0.0f);
  cudaGraphExecDestroy(row);
  if (!works) return {};
  std::sort(times.begin(), times.end());
  return times[1] / static_cast<float>(kRow * streams_.size());
}

std::optional<float> Stopwatch::in_a_row(const Run& run, float best) {
  constexpr float kShort = 0.05f;  // milliseconds, including the host's overhead
  if (!once(run)) return {};
  const std::optional<float> second = once(run);
  return second && *second < kShort ? recorded(run) : median(run, best);
}

std::optional<float> Stopwatch::median(const Run& run, float best) {
  constexpr float kHopeless = 3.0f;  // times the best so far
  if (!once(run)) return {};         // loads the code
  const std::optional<float> second = once(run);
  if (!second || *second > kHopeless * best) return second;
  std::array<float, 5> times = {};
  for (float& time : times) {
    const std::optional<float> taken = once(run);
    if (!taken) return {};
    time = *taken;
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace lockstep
