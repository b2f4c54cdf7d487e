#include "lockstep/device/cuda/cuda_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/gpu_code.h"
#include "lockstep/device/cuda/runtime.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {
namespace {

// Pinned host memory, which GPUs copy asynchronously. Pinning is slow, and unpinning synchronises
// the GPUs, so some freed blocks are kept for later requests of the same size, such as those of the
// next epoch.
class PinnedMemory final : public Device {
 public:
  explicit PinnedMemory(int gpu) : gpu_(gpu) {}

  DeviceKind kind() const override { return DeviceKind::Cpu; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override { return host().make_stream(); }
  std::unique_ptr<Event> make_event(bool timed) override { return host().make_event(timed); }
  void make_current() override {}
  void pin_thread() override {}
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    host().copy(to, from, bytes);
  }
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override { return allocate(bytes); }

 private:
  static constexpr std::size_t kMostKept = std::size_t{2} << 30;  // bytes

  std::byte* allocate_bytes(std::size_t bytes) override {
    void* data = take_kept(bytes);
    const std::size_t some = std::max<std::size_t>(bytes, 1);
    if (data == nullptr) {
      check_cuda(cudaSetDevice(gpu_), "selecting a GPU");
      check_cuda(cudaHostAlloc(&data, some, cudaHostAllocMapped | cudaHostAllocPortable),
                 "pinning host memory");
    }
    std::memset(data, 0, some);
    return static_cast<std::byte*>(data);
  }

  std::byte* take_kept(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(bytes);
    if (found == kept_.end()) return nullptr;
    std::byte* const data = found->second;
    kept_.erase(found);
    kept_bytes_ -= bytes;
    return data;
  }

  void free_bytes(std::byte* data, std::size_t bytes) override {
    {
      const std::lock_guard lock(mutex_);
      if (kept_bytes_ + bytes <= kMostKept) {
        kept_.emplace(bytes, data);
        kept_bytes_ += bytes;
        return;
      }
    }
    cudaFreeHost(data);
  }

  std::string name_ = "pinned host memory";
  int gpu_;
  std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> kept_;  // by size
  std::size_t kept_bytes_ = 0;
};

// One for all GPUs, because each can reach all of it; the GPU that asks first does the pinning.
Device& pinned_memory(int gpu) {
  static PinnedMemory memory(gpu);
  return memory;
}

const CudaDevice& as_cuda(const Device& device) {
  require(device.kind() == DeviceKind::Cuda, "[device] {} is not a GPU", device.name());
  return static_cast<const CudaDevice&>(device);
}

// "13.0" for 13000.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string why_none_of(cudaError_t status) {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (status == cudaErrorInsufficientDriver && driver > 0) {
    return fmt::format(
        "the NVIDIA driver is for CUDA {}, but Lockstep was built with CUDA {}: install a newer "
        "driver",
        version_text(driver), version_text(runtime));
  }
  if (driver == 0) {
    return "no NVIDIA driver was found (libcuda.so.1): install one, or, in a container, start it "
           "with GPUs";
  }
  if (status == cudaErrorNoDevice || status == cudaSuccess) {
    return "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES may hide them)";
  }
  return fmt::format("CUDA says: {}", cudaGetErrorString(status));
}

}  // namespace

std::string cuda_version() {
  int runtime = 0;
  return cudaRuntimeGetVersion(&runtime) == cudaSuccess ? version_text(runtime) : "";
}

GpuInventory find_gpus() {
  // Replicas that share a GPU wait for one another on it, so their streams must not share a queue.
  // CUDA reads this when it starts, in the next call; a value set by the user is kept.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  GpuInventory inventory;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    inventory.why_none = why_none_of(status);
    return inventory;
  }
  std::string unknown;  // why kernels do not run on the GPUs that were skipped
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    const Gpu gpu{.index = i,
                  .model = properties.name,
                  .major = properties.major,
                  .minor = properties.minor,
                  .multiprocessors = properties.multiProcessorCount,
                  .memory_bytes = properties.totalGlobalMem};
    const std::string why_not = why_no_code_for(gpu, LOCKSTEP_CUDA_ARCHITECTURES);
    if (why_not.empty()) {
      inventory.gpus.push_back(gpu);
    } else {
      unknown += (unknown.empty() ? "" : "; ") + why_not;
    }
  }
  if (inventory.gpus.empty()) {
    inventory.why_none = unknown.empty() ? "the properties of the GPUs could not be read" : unknown;
  }
  return inventory;
}

std::unique_ptr<Device> make_cuda_device(std::string_view name) {
  const CudaName parsed = parse_cuda_name(name);
  const GpuInventory inventory = find_gpus();
  require(!inventory.gpus.empty(), "[device] {} cannot be used: {}", name, inventory.why_none);
  const auto found = std::ranges::find(inventory.gpus, parsed.gpu, &Gpu::index);
  require(found != inventory.gpus.end(), "[device] there is no {}: this machine's GPUs are {}",
          name,
          inventory.gpus.size() == 1 ? std::string("cuda:0")
                                     : fmt::format("cuda:0 to cuda:{}", inventory.gpus.size() - 1));
  return std::make_unique<CudaDevice>(std::string(name), *found);
}

Gpu gpu_of(const Device& device) {
  return as_cuda(device).gpu();
}

std::size_t free_gpu_bytes(const Device& device) {
  check_cuda(cudaSetDevice(as_cuda(device).gpu().index), "selecting a GPU");
  std::size_t free = 0;
  std::size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "querying the free memory");
  return free;
}

CudaDevice::CudaDevice(std::string name, Gpu gpu) : name_(std::move(name)), gpu_(std::move(gpu)) {
  make_current();
  own_ = std::make_unique<CudaStream>();
}

CudaDevice::~CudaDevice() = default;

std::unique_ptr<Stream> CudaDevice::make_stream() {
  make_current();
  auto stream = std::make_unique<CudaStream>();
  const std::lock_guard lock(streams_mutex_);
  std::erase_if(issued_, [](const auto& each) { return each.expired(); });
  issued_.push_back(stream->watch());
  return stream;
}

std::unique_ptr<Event> CudaDevice::make_event(bool timed) {
  make_current();
  return std::make_unique<CudaEvent>(timed);
}

void CudaDevice::make_current() {
  check_cuda(cudaSetDevice(gpu_.index), "selecting a GPU");
}

void CudaDevice::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  make_current();
  const std::lock_guard lock(streams_mutex_);
  for (const auto& each : issued_) {
    const std::shared_ptr<cudaStream_t> stream = each.lock();
    if (stream != nullptr) check_cuda(cudaStreamSynchronize(*stream), "running a step");
  }
  own_->copy(to, from, bytes);
  own_->synchronize();
}

std::shared_ptr<Buffer> CudaDevice::allocate_host(std::size_t bytes) {
  return pinned_memory(gpu_.index).allocate(bytes);
}

std::byte* CudaDevice::allocate_bytes(std::size_t bytes) {
  std::byte* const data = allocate_unset_bytes(bytes);
  check_cuda(cudaMemsetAsync(data, 0, bytes, own_->handle()), "zeroing memory");
  own_->synchronize();
  return data;
}

std::byte* CudaDevice::allocate_unset_bytes(std::size_t bytes) {
  make_current();
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail<MemoryError>(
        "[device] {} ({}): {} MiB of memory were requested, but {} MiB are free; use a smaller "
        "batch, or 16-bit precision",
        name_, gpu_.model, bytes >> 20, free_gpu_bytes(*this) >> 20);
  }
  check_cuda(status, "allocating memory");
  return static_cast<std::byte*>(data);
}

void CudaDevice::free_bytes(std::byte* data, std::size_t) {
  cudaSetDevice(gpu_.index);
  cudaFree(data);
}

}  // namespace lockstep
