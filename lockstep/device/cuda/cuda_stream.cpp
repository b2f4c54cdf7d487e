#include "lockstep/device/cuda/kernel_copy.h"
#include "lockstep/device/cuda/runtime.h"

namespace lockstep {
namespace {

// A CUDA graph, made ready to launch.
class CudaRecording final : public Recording {
 public:
  // Everything that a launch needs is brought to the GPU here: later, other replicas may already
  // wait there for this one.
  CudaRecording(cudaGraph_t graph, cudaStream_t stream) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "making a recorded step ready");
    check_cuda(cudaGraphUpload(graph_, stream), "bringing a recorded step to the GPU");
    check_cuda(cudaStreamSynchronize(stream), "bringing a recorded step to the GPU");
  }
  ~CudaRecording() override { cudaGraphExecDestroy(graph_); }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  void launch(Stream& stream) override {
    check_cuda(cudaGraphLaunch(graph_, cuda_stream(stream)), "launching a recorded step");
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

bool is_recorded(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a step is recorded");
  return status == cudaStreamCaptureStatusActive;
}

}  // namespace

CudaStream::CudaStream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  stream_ = std::shared_ptr<cudaStream_t>(new cudaStream_t(stream), [](cudaStream_t* handle) {
    cudaStreamDestroy(*handle);
    delete handle;
  });
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
}

CudaStream::~CudaStream() {
  cudaEventDestroy(event_);
}

void CudaStream::synchronize() {
  check_cuda(cudaStreamSynchronize(handle()), "waiting for a stream");
}

void CudaStream::wait_for(Stream& other) {
  if (&other == this) return;
  auto& awaited = static_cast<CudaStream&>(other);
  check_cuda(cudaEventRecord(awaited.event_, awaited.handle()), "recording an event");
  check_cuda(cudaStreamWaitEvent(handle(), awaited.event_, 0), "waiting for an event");
}

void CudaStream::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  const bool small =
      bytes <= kMostSmallCopy && is_recorded(handle()) && can_copy_by_kernel(to, from);
  if (small || lie_within_gpu(to, from)) {
    return copy_by_kernel(to, from, bytes, handle());
  }
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle()), "copying");
}

void CudaStream::copy_all(std::span<const Copy> copies) {
  std::vector<Copy> small;
  for (const Copy& each : copies) {
    if (each.bytes <= kMostOfSeveral && lie_within_gpu(each.to, each.from)) {
      small.push_back(each);
    } else {
      copy(each.to, each.from, each.bytes);
    }
  }
  copy_several_by_kernel(small, handle());
}

std::unique_ptr<Recording> CudaStream::record(const std::function<void()>& f) {
  check_cuda(cudaStreamBeginCapture(handle(), cudaStreamCaptureModeRelaxed),
             "beginning to record a step");
  cudaGraph_t graph = nullptr;
  try {
    f();
  } catch (...) {
    cudaStreamEndCapture(handle(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(handle(), &graph), "recording a step");
  return std::make_unique<CudaRecording>(graph, handle());
}

}  // namespace lockstep
