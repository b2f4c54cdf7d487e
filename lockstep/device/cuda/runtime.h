// Wrappers for CUDA's runtime: errors as exceptions, streams and devices with their handles. Only
// for files that are compiled with CUDA.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {

// InternalError, naming what was being done, if CUDA reports a failure.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fail<InternalError>("[cuda] {}: {} ({})", what, cudaGetErrorString(status),
                      cudaGetErrorName(status));
}

class CudaStream final : public Stream {
 public:
  CudaStream();  // on the calling thread's GPU
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t handle() const { return *stream_; }
  // The handle; expires with the stream.
  std::weak_ptr<cudaStream_t> watch() const { return stream_; }
  void synchronize() override;
  void wait_for(Stream& other) override;
  void wait_for(Event& event) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void copy_all(std::span<const Copy> copies) override;
  void stamp(std::int64_t* to) override;
  std::unique_ptr<Recording> record(const std::function<void()>& f) override;

 private:
  std::shared_ptr<cudaStream_t> stream_;
  cudaEvent_t event_ = nullptr;  // marks what was issued so far, for other streams to wait for
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(bool timed);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t handle() const { return event_; }
  void record(Stream& stream) override;
  bool reached() override;
  void wait() override;
  double ms_since(const Event& earlier) override;

 private:
  cudaEvent_t event_ = nullptr;
};

// The handle of a stream of a CUDA device.
inline cudaStream_t cuda_stream(Stream& stream) {
  return static_cast<CudaStream&>(stream).handle();
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::string name, Gpu gpu);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::Cuda; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event(bool timed) override;
  void make_current() override;
  void pin_thread() override { make_current(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override;

  const Gpu& gpu() const { return gpu_; }

 private:
  std::byte* allocate_bytes(std::size_t bytes) override;
  std::byte* allocate_unset_bytes(std::size_t bytes) override;
  void free_bytes(std::byte* data, std::size_t bytes) override;

  std::string name_;
  Gpu gpu_;
  // The streams of this device, for copy() to wait for. It does not wait for other logical devices
  // of the GPU: their work may be waiting for ours.
  std::mutex streams_mutex_;
  std::vector<std::weak_ptr<cudaStream_t>> issued_;
  std::unique_ptr<CudaStream> own_;  // for zeroing and copies
};

}  // namespace lockstep
