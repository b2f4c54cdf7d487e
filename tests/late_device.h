// A device that runs asynchronously to the host, for tests on machines without one. Work that is
// issued stays in its stream until a thread waits for it, and runs only then, on that thread. So
// writing memory or reading results too early gives wrong numbers. Kernels are those of the CPU, on
// one core.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/device.h"

namespace lockstep::testing {

class LateDevice final : public Device {
 public:
  // When the stream of input copies runs: as late as the others, or as soon as it may.
  enum class Copies { Late, Early };
  explicit LateDevice(Copies copies = Copies::Late) : copies_(copies) {}

  DeviceKind kind() const override { return DeviceKind::Cuda; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override {
    const bool early = copies_ == Copies::Early && made_ == kCopyStream;
    auto stream = std::make_unique<LateStream>(*this, made_++ == kCopyStream, early);
    streams_.push_back(stream.get());
    return stream;
  }
  std::unique_ptr<Event> make_event(bool) override { return std::make_unique<LateEvent>(); }
  void make_current() override { core().make_current(); }
  void pin_thread() override { make_current(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    for (LateStream* stream : streams_) stream->run_to(stream->issued());
    host().copy(to, from, bytes);
  }
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override {
    return pinned_.allocate(bytes);
  }

  // The same core as a synchronous device.
  static Device& core() {
    static CpuDevice device(0, {available_cores().front()});
    return device;
  }

  // How many recordings were launched but have not run.
  int in_flight() const { return in_flight_; }
  // The largest number of them there ever was.
  int max_in_flight() const { return max_in_flight_; }
  // The same at the times when memory of the device was allocated, for example for a plan.
  int in_flight_when_allocated() const { return in_flight_when_allocated_; }
  // The addresses that inputs were copied from.
  const std::set<const std::byte*>& sources() const { return sources_; }

 private:
  static constexpr int kCopyStream = 2;

  class LateStream final : public Stream {
   public:
    LateStream(LateDevice& device, bool copies, bool early)
        : device_(device), copies_(copies), early_(early) {}

    void synchronize() override { run_to(issued()); }
    void wait_for(Stream& other) override {
      auto& awaited = static_cast<LateStream&>(other);
      if (device_.running_) return;
      issue({.work = {}, .awaited = &awaited, .until = awaited.issued()});
    }
    void wait_for(Event& event) override;
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
      ensure(device_.pinned_.is_one_block(from, bytes) && device_.pinned_.is_one_block(to, bytes),
             "a copy of {} bytes spans two blocks of host memory", bytes);
      if (device_.running_) return host().copy(to, from, bytes);
      if (copies_) device_.sources_.insert(from);
      issue({.work = [=] { host().copy(to, from, bytes); }});
    }
    void stamp(std::int64_t* to) override {
      if (device_.running_) return time_of(to);
      issue({.work = [=] { time_of(to); }});
    }
    std::unique_ptr<Recording> record(const std::function<void()>& f) override {
      return std::make_unique<LateRecording>(device_, f);
    }

    bool running() const { return device_.running_; }
    struct Item {
      std::function<void()> work = {};
      LateStream* awaited = nullptr;
      std::uint64_t until = 0;
    };
    void issue(Item item) {
      queue_.push_back(std::move(item));
      while (early_ && !queue_.empty() && may_run(queue_.front())) run_one();
    }
    std::uint64_t issued() const { return done_ + queue_.size(); }
    std::uint64_t done() const { return done_; }
    void run_to(std::uint64_t count) {
      while (done_ < count) run_one();
    }

   private:
    static void time_of(std::int64_t* to) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      *to = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    }
    static bool may_run(const Item& item) {
      return item.awaited == nullptr || item.awaited->done() >= item.until;
    }
    void run_one() {
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      ++done_;
      if (item.awaited != nullptr) item.awaited->run_to(item.until);
      if (item.work) item.work();
    }

    LateDevice& device_;
    bool copies_;
    bool early_;
    std::deque<Item> queue_;
    std::uint64_t done_ = 0;
  };

  class LateRecording final : public Recording {
   public:
    LateRecording(LateDevice& device, std::function<void()> f)
        : device_(device), f_(std::move(f)) {}
    void launch(Stream& stream) override {
      ++device_.in_flight_;
      device_.max_in_flight_ = std::max(device_.max_in_flight_, device_.in_flight_);
      static_cast<LateStream&>(stream).issue({.work = [this] {
        const Running running(device_);
        f_();
      }});
    }

   private:
    struct Running {
      explicit Running(LateDevice& of) : device(of) {
        --device.in_flight_;
        device.running_ = true;
      }
      ~Running() { device.running_ = false; }
      LateDevice& device;
    };
    LateDevice& device_;
    std::function<void()> f_;
  };

  class LateEvent final : public Event {
   public:
    void record(Stream& stream) override {
      stream_ = static_cast<LateStream*>(&stream);
      if (stream_->running()) return;  // in a recording, whose work runs in the order of its issue
      stream_->issue({.work = [when = when_] { *when = std::chrono::steady_clock::now(); }});
      at_ = stream_->issued();
    }
    bool reached() override { return stream_ == nullptr || stream_->done() >= at_; }
    void wait() override {
      if (stream_ != nullptr) stream_->run_to(at_);
    }
    double ms_since(const Event& earlier) override {
      const auto& before = static_cast<const LateEvent&>(earlier);
      return std::chrono::duration<double, std::milli>(*when_ - *before.when_).count();
    }

    LateStream* stream() const { return stream_; }
    std::uint64_t at() const { return at_; }

   private:
    using Time = std::chrono::steady_clock::time_point;
    std::shared_ptr<Time> when_ = std::make_shared<Time>();
    LateStream* stream_ = nullptr;
    std::uint64_t at_ = 0;
  };

  // Pinned memory of the host, which the device copies asynchronously.
  class PinnedMemory final : public Device {
   public:
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

    // Whether bytes that lie here, if they do, are in one block: a GPU copies from and to no more.
    bool is_one_block(const std::byte* data, std::size_t bytes) const {
      const auto after = blocks_.upper_bound(data);
      if (after == blocks_.begin()) return true;
      const auto& [begin, size] = *std::prev(after);
      return data >= begin + size || data + bytes <= begin + size;
    }

   private:
    // Blocks touch each other as far as there is room for them.
    std::byte* allocate_bytes(std::size_t bytes) override {
      const std::size_t some = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
      if (slabs_.empty() || used_ + some > kSlab) {
        slabs_.emplace_back(zeroed(std::max(some, kSlab)), &std::free);
        used_ = 0;
      }
      std::byte* const data = slabs_.back().get() + used_;
      used_ += some;
      blocks_[data] = bytes;
      return data;
    }
    void free_bytes(std::byte* data, std::size_t) override { blocks_.erase(data); }

    static constexpr std::size_t kSlab = std::size_t{8} << 20;
    std::string name_ = "late:0 host memory";
    std::vector<std::unique_ptr<std::byte, void (*)(void*)>> slabs_;
    std::size_t used_ = 0;  // of the last one
    std::map<const std::byte*, std::size_t> blocks_;
  };

  static std::byte* filled(std::size_t bytes, int with) {
    const std::size_t some = (bytes / 64 + 1) * 64;
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(64, some));
    std::memset(data, with, some);
    return data;
  }
  static std::byte* zeroed(std::size_t bytes) { return filled(bytes, 0); }
  std::byte* allocate_bytes(std::size_t bytes) override { return allocated(bytes, 0); }
  // NaNs, so that a read before the first write is noticed.
  std::byte* allocate_unset_bytes(std::size_t bytes) override { return allocated(bytes, 0xff); }
  std::byte* allocated(std::size_t bytes, int with) {
    in_flight_when_allocated_ = std::max(in_flight_when_allocated_, in_flight_);
    return filled(bytes, with);
  }
  void free_bytes(std::byte* data, std::size_t) override { std::free(data); }

  std::string name_ = "late:0";
  Copies copies_;
  PinnedMemory pinned_;
  int made_ = 0;
  std::vector<LateStream*> streams_;
  bool running_ = false;  // inside a recording
  int in_flight_ = 0;
  int max_in_flight_ = 0;
  int in_flight_when_allocated_ = 0;
  std::set<const std::byte*> sources_;
};

inline void LateDevice::LateStream::wait_for(Event& event) {
  const auto& awaited = static_cast<LateEvent&>(event);
  if (device_.running_ || awaited.stream() == nullptr) return;
  issue({.work = {}, .awaited = awaited.stream(), .until = awaited.at()});
}

}  // namespace lockstep::testing
