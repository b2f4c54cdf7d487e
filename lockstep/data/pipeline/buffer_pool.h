// Buffers that are reused once nobody holds them any more.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/device.h"

namespace lockstep {

class BufferPool {
 public:
  explicit BufferPool(Device& memory = host()) : memory_(&memory) {}

  // A buffer of at least this size that nobody else holds; its contents are arbitrary. Only one
  // thread may call this; any thread may release a buffer.
  std::shared_ptr<Buffer> take(std::size_t bytes) {
    for (const std::shared_ptr<Buffer>& buffer : buffers_) {
      if (buffer->bytes() < bytes || buffer.use_count() > 1) continue;
      // Orders the reads of the last holder before our writes.
      std::atomic_thread_fence(std::memory_order_acquire);
      return buffer;
    }
    if (buffers_.size() == kMost) return host().allocate(bytes);
    buffers_.push_back(memory_->allocate(bytes));
    return buffers_.back();
  }

 private:
  // A consumer that holds more keeps them for good; those do not take pinned memory.
  static constexpr std::size_t kMost = 32;

  Device* memory_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
};

}  // namespace lockstep
