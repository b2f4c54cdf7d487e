#include "lockstep/device/device.h"

#include <algorithm>

namespace lockstep {

Buffer::~Buffer() {
  device_->in_use_ -= bytes_;
  device_->free_bytes(data_, bytes_);
}

Stream& Device::stream(std::size_t number) {
  const std::lock_guard lock(streams_mutex_);
  while (streams_.size() <= number) streams_.push_back(make_stream());
  return *streams_[number];
}

void Device::synchronize() {
  const std::lock_guard lock(streams_mutex_);
  for (const auto& stream : streams_) stream->synchronize();
}

std::shared_ptr<Buffer> Device::allocate(std::size_t bytes) {
  return counted(allocate_bytes(bytes), bytes);
}

std::shared_ptr<Buffer> Device::allocate_persistent(std::size_t bytes) {
  return counted(allocate_persistent_bytes(bytes), bytes);
}

std::shared_ptr<Buffer> Device::allocate_unset(std::size_t bytes) {
  return counted(allocate_unset_bytes(bytes), bytes);
}

std::shared_ptr<Buffer> Device::counted(std::byte* data, std::size_t bytes) {
  auto buffer = std::make_shared<Buffer>(*this, data, bytes);
  const std::size_t in_use = in_use_ += bytes;
  std::size_t peak = peak_;
  while (peak < in_use && !peak_.compare_exchange_weak(peak, in_use)) {
  }
  return buffer;
}

}  // namespace lockstep
