// Device, Buffer, Stream: where memory lies and where work is issued.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

class Device;

// A block of a device's memory, given back when it goes. Aligned to 64 bytes at least.
class Buffer {
 public:
  Buffer(Device& device, std::byte* data, std::size_t bytes)
      : device_(&device), data_(data), bytes_(bytes) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device& device() const { return *device_; }

 private:
  Device* device_;
  std::byte* data_;
  std::size_t bytes_;
};

class Stream;

// Work that was issued once, to be issued again as a whole.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void launch(Stream& stream) = 0;
};

// Work issued to a stream runs in the order in which it was issued. On the CPU it has run by the
// time that the call returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
  // What is issued here from now on waits for what has been issued to `other`, of the same device.
  virtual void wait_for(Stream& other) = 0;
  // Copies between memories that the device reaches: its own, and the host's (allocate_host).
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Several, in no order: what one writes none of the others touches.
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  virtual void copy_all(std::span<const Copy> copies) {
    for (const Copy& each : copies) copy(each.to, each.from, each.bytes);
  }
  // Writes the time of the device's clock, in nanoseconds, to memory of the host (allocate_host)
  // when it gets there.
  virtual void stamp(std::int64_t* to) = 0;
  // Records what f issues to this stream, and to streams that wait for it and that it waits for
  // again; nothing of it runs. None where the device has no such thing.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& f) = 0;
};

// A point in a stream, for the host to wait for.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual bool reached() = 0;  // also where it was never recorded
  virtual void wait() = 0;
  // Milliseconds on the device's clock since an earlier event; both timed, and reached.
  virtual double ms_since(const Event& earlier) = 0;
};

enum class DeviceKind { Cpu, Cuda };

// A place that computes. Devices outlive everything that was made on them.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual const std::string& name() const = 0;  // "cpu:0"
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event(bool timed) = 0;
  // The device's own streams, by number, made when they are first asked for. Who issues work to the
  // device shares them: a GPU runs few at once, and those of replicas that wait for one another
  // must all be among them.
  Stream& stream(std::size_t number);
  // Makes the calling thread one that issues work for this device: its cores, its context.
  virtual void enter() = 0;
  // The same for a thread that will do nothing else: it also stays on the device's cores.
  virtual void settle() = 0;
  // Whether the host reads and writes the device's memory as its own.
  bool shares_host_memory() const { return kind() == DeviceKind::Cpu; }
  // Copies between its memory and the host's, in either direction; done when it returns.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Zeroed memory of the host that streams of this device copy from and to without stopping.
  virtual std::shared_ptr<Buffer> allocate_host(std::size_t bytes) = 0;

  // Zeroed memory. UsageError, with what was asked and what is free, where there is not enough.
  std::shared_ptr<Buffer> allocate(std::size_t bytes);
  // The same for what stays as long as a model and is looked at in every step: in huge pages, where
  // it is worth one, so that neighbours do not drive one another out of a cache.
  std::shared_ptr<Buffer> allocate_lasting(std::size_t bytes);
  // Lasting with anything in it, for what is written before it is read.
  std::shared_ptr<Buffer> allocate_unset(std::size_t bytes);

  std::size_t bytes_in_use() const { return in_use_; }
  std::size_t peak_bytes() const { return peak_; }

 protected:
  friend class Buffer;
  virtual std::byte* allocate_bytes(std::size_t bytes) = 0;
  virtual std::byte* allocate_lasting_bytes(std::size_t bytes) { return allocate_bytes(bytes); }
  virtual std::byte* allocate_unset_bytes(std::size_t bytes) {
    return allocate_lasting_bytes(bytes);
  }
  virtual void free_bytes(std::byte* data, std::size_t bytes) = 0;

 private:
  std::shared_ptr<Buffer> counted(std::byte* data, std::size_t bytes);

  std::mutex streams_mutex_;
  std::deque<std::unique_ptr<Stream>> streams_;
  std::atomic<std::size_t> in_use_ = 0;
  std::atomic<std::size_t> peak_ = 0;
};

}  // namespace lockstep
