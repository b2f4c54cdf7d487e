#include "lockstep/device/cuda/kernel_copy.h"
#include "lockstep/device/cuda/runtime.h"

namespace lockstep {
namespace {

// A CUDA graph, instantiated and ready to launch.
class CudaRecording final : public Recording {
 public:
  // Uploads everything that a launch needs: later, other replicas may already be waiting for this
  // one on the GPU.
  CudaRecording(cudaGraph_t graph, cudaStream_t stream) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "instantiating a recorded step");
    check_cuda(cudaGraphUpload(graph_, stream), "uploading a recorded step");
    check_cuda(cudaStreamSynchronize(stream), "uploading a recorded step");
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

bool is_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "querying whether a step is being recorded");
  return status == cudaStreamCaptureStatusActive;
}

}  // namespace

CudaEvent::CudaEvent(bool timed) {
  const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
  check_cuda(cudaEventCreateWithFlags(&event_, flags), "making an event");
}

CudaEvent::~CudaEvent() {
  cudaEventDestroy(event_);
}

void CudaEvent::record(Stream& stream) {
  check_cuda(cudaEventRecord(event_, cuda_stream(stream)), "recording an event");
}

bool CudaEvent::reached() {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, "running a step");
  return true;
}

void CudaEvent::wait() {
  check_cuda(cudaEventSynchronize(event_), "running a step");
}

double CudaEvent::ms_since(const Event& earlier) {
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, static_cast<const CudaEvent&>(earlier).event_, event_),
             "reading the time between events");
  return static_cast<double>(ms);
}

CudaStream::CudaStream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  stream_ = std::shared_ptr<cudaStream_t>(new cudaStream_t(stream), [](cudaStream_t* handle) {
    cudaStreamDestroy(*handle);
    delete handle;
  });
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event");
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

void CudaStream::wait_for(Event& event) {
  check_cuda(cudaStreamWaitEvent(handle(), static_cast<CudaEvent&>(event).handle(), 0),
             "waiting for an event");
}

void CudaStream::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  const bool small =
      bytes <= kMostSmallCopy && is_recording(handle()) && can_copy_by_kernel(to, from);
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
