// A logical CPU device: some of the machine's cores, and its memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

class CpuDevice final : public Device {
 public:
  // The device `cpu:<index>` with these cores, numbered as the system numbers them.
  CpuDevice(int index, std::vector<int> cores);

  DeviceKind kind() const override { return DeviceKind::Cpu; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event(bool timed) override;
  // Gives the calling thread as many OpenMP threads as the device has cores.
  void make_current() override;
  void pin_thread() override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override { return allocate(bytes); }

  const std::vector<int>& cores() const { return cores_; }

 private:
  std::byte* allocate_bytes(std::size_t bytes) override;
  std::byte* allocate_persistent_bytes(std::size_t bytes) override;
  std::byte* zeroed(std::size_t bytes, bool in_huge_pages) const;
  void free_bytes(std::byte* data, std::size_t bytes) override;

  std::string name_;
  std::vector<int> cores_;
};

// The cores that this process may run on.
std::vector<int> available_cores();

// `count` logical devices that divide the cores as evenly as possible. With more devices than
// cores, several devices share a core.
std::vector<std::unique_ptr<CpuDevice>> make_cpu_devices(int count);
// The same for some of the cores.
std::vector<std::unique_ptr<CpuDevice>> make_cpu_devices(int count, const std::vector<int>& cores);

// The whole machine as one device, for tensors that belong to no replica: batches, checkpoints.
Device& host();

}  // namespace lockstep
