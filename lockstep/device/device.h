// Device, Buffer, Stream: where memory is and where work is issued.
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

// A block of a device's memory, freed on destruction. Aligned to at least 64 bytes.
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

class Event;
class Stream;

// Work that was recorded once, to be launched as a whole any number of times.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void launch(Stream& stream) = 0;
};

// Work issued to a stream runs in the order in which it was issued. On the CPU it has run when the
// call returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
  // What is issued here from now on waits for what has been issued so far to `other`, a stream of
  // the same device.
  virtual void wait_for(Stream& other) = 0;
  // The same for what had been issued, to a stream of this device, when the event was recorded.
  virtual void wait_for(Event& event) = 0;
  // Copies between memories that the device reaches: its own, and the host's (allocate_host).
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Several copies, in any order; none may touch what another one writes.
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  virtual void copy_all(std::span<const Copy> copies) {
    for (const Copy& each : copies) copy(each.to, each.from, each.bytes);
  }
  // Writes the device's clock, in nanoseconds, to host memory (allocate_host) when the stream gets
  // there.
  virtual void stamp(std::int64_t* to) = 0;
  // Records, without running it, what f issues to this stream and to streams that fork from it and
  // join it again (wait_for). Null if the device cannot record.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& f) = 0;
};

// A point in a stream, for the host or another stream to wait for.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual bool reached() = 0;  // also if it was never recorded
  virtual void wait() = 0;
  // Milliseconds on the device's clock since an earlier event; both must be timed and reached.
  virtual double ms_since(const Event& earlier) = 0;
};

enum class DeviceKind { Cpu, Cuda };

// A place that computes. Devices must outlive everything created on them.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual const std::string& name() const = 0;  // "cpu:0"
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event(bool timed) = 0;
  // The device's own streams, by number, created on first use and shared by everything that issues
  // work to the device: a GPU runs only a few streams at once, and those of replicas that wait for
  // one another must all be among them.
  Stream& stream(std::size_t number);
  // Until all that was issued to them has run.
  void synchronize();
  // Makes the calling thread one that issues work for this device: its cores, its context.
  virtual void make_current() = 0;
  // The same for a thread that does nothing else: it also stays on the device's cores.
  virtual void pin_thread() = 0;
  // Whether the host can read and write the device's memory directly.
  bool shares_host_memory() const { return kind() == DeviceKind::Cpu; }
  // Copies between the device's memory and the host's, in either direction; done when it returns.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Zeroed host memory that streams of this device copy from and to asynchronously.
  virtual std::shared_ptr<Buffer> allocate_host(std::size_t bytes) = 0;

  // Zeroed memory. UsageError, with what was requested and what is free, if there is not enough.
  std::shared_ptr<Buffer> allocate(std::size_t bytes);
  // The same for memory that lives as long as a model and is read in every step: in huge pages if
  // it is large enough, so that neighbours do not evict one another from a cache.
  std::shared_ptr<Buffer> allocate_persistent(std::size_t bytes);
  // Persistent memory with arbitrary contents, for what is written before it is read.
  std::shared_ptr<Buffer> allocate_unset(std::size_t bytes);

  std::size_t bytes_in_use() const { return in_use_; }
  std::size_t peak_bytes() const { return peak_; }

 protected:
  friend class Buffer;
  virtual std::byte* allocate_bytes(std::size_t bytes) = 0;
  virtual std::byte* allocate_persistent_bytes(std::size_t bytes) { return allocate_bytes(bytes); }
  virtual std::byte* allocate_unset_bytes(std::size_t bytes) {
    return allocate_persistent_bytes(bytes);
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
