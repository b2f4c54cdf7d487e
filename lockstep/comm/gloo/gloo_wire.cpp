// Gloo sends a message once the receiver has said that it is ready for it, so a receive that is
// posted early saves a round trip. Its waits cannot be limited in time: a wait that times out
// closes all connections. They can be aborted, however; a thread that does next to nothing aborts
// those that last, so that the waiter can look around.
#include "lockstep/comm/gloo/gloo_wire.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kGlooForever = 24h * 365;
constexpr std::chrono::milliseconds kGlooTick = 100ms;

// Gloo writes to sockets in a way that ends the process by SIGPIPE if the other end is closed.
// While this lives, this thread and those that it starts get an error instead.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec at_once{};
    sigtimedwait(&sigpipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
};

// Gloo's view of our store.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(lockstep::Store& store, std::string prefix, std::chrono::milliseconds timeout)
      : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(prefix_ + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) store_.get(prefix_ + key, timeout);
  }

 private:
  lockstep::Store& store_;
  std::string prefix_;
  std::chrono::milliseconds timeout_;
};

// The one buffer that is waited for, if any.
class GlooWaits {
 public:
  using Buffer = gloo::transport::UnboundBuffer;

  GlooWaits() : thread_([this] { run(); }) {}
  ~GlooWaits() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_one();
    thread_.join();
  }

  bool wait(Buffer& buffer, bool sends) {
    begin(buffer, sends);
    try {
      const bool done =
          sends ? buffer.waitSend(nullptr, kGlooForever) : buffer.waitRecv(nullptr, kGlooForever);
      end();
      return done;
    } catch (...) {
      end();
      throw;
    }
  }

  void interrupt() {
    const std::lock_guard lock(mutex_);
    abort_wait();
  }

 private:
  void begin(Buffer& buffer, bool sends) {
    const std::lock_guard lock(mutex_);
    buffer_ = &buffer;
    sends_ = sends;
    ++waits_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    buffer_ = nullptr;
  }
  void abort_wait() {
    if (buffer_ == nullptr) return;
    sends_ ? buffer_->abortWaitSend() : buffer_->abortWaitRecv();
  }
  void run() {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = 0;
    while (!stopped_.wait_for(lock, kGlooTick, [&] { return stop_; })) {
      if (seen == waits_) abort_wait();
      seen = waits_;
    }
  }

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  Buffer* buffer_ = nullptr;
  bool sends_ = false;
  std::uint64_t waits_ = 0;
  std::thread thread_;
};

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(GlooWaits& waits, std::unique_ptr<gloo::transport::UnboundBuffer> buffer, int peer,
               bool sends)
      : waits_(waits), buffer_(std::move(buffer)), peer_(peer), sends_(sends) {}

  void begin(std::uint64_t tag) {
    const NoSigpipe no_sigpipe;
    guarded([&] { sends_ ? buffer_->send(peer_, tag) : buffer_->recv(peer_, tag); });
  }
  bool await() override {
    if (!over_) guarded([&] { over_ = waits_.wait(*buffer_, sends_); });
    return over_;
  }
  // A wait that was aborted before it began returns at once, and throws if there is an error.
  void check() override {
    if (over_) return;
    guarded([&] {
      sends_ ? buffer_->abortWaitSend() : buffer_->abortWaitRecv();
      sends_ ? buffer_->waitSend(nullptr, kGlooForever) : buffer_->waitRecv(nullptr, kGlooForever);
    });
  }

 private:
  template <class Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      throw LostWorker(peer_, error.what());
    }
  }

  GlooWaits& waits_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  int peer_;
  bool sends_;
  bool over_ = false;
};

class GlooWire final : public Wire {
 public:
  GlooWire(const GlooOptions& options, const std::string& prefix)
      : context_(options.worker, options.workers) {
    await_workers(options, prefix);
    const NoSigpipe no_sigpipe;
    try {
      gloo::transport::tcp::attr attributes;
      attributes.hostname = options.address;
      attributes.iface = options.interface;
      auto device = gloo::transport::tcp::CreateDevice(attributes);
      context_.setTimeout(options.timeout);
      GlooStore store(*options.store, prefix, options.timeout);
      context_.connectFullMesh(store, device);
    } catch (const std::exception& error) {
      fail<CommError>("[gloo] worker {} of {} could not connect with the others from {}: {}",
                      options.worker, options.workers,
                      options.address.empty() ? options.interface : options.address, error.what());
    }
  }

  int worker() const override { return context_.rank; }
  int workers() const override { return context_.size; }
  std::unique_ptr<Transfer> send(int to, std::uint64_t tag,
                                 std::span<const std::byte> data) override {
    // Gloo's buffers are for both directions; what is sent is only read.
    return begin(to, tag, const_cast<std::byte*>(data.data()), data.size(), true);
  }
  std::unique_ptr<Transfer> receive(int from, std::uint64_t tag,
                                    std::span<std::byte> data) override {
    return begin(from, tag, data.data(), data.size(), false);
  }
  void interrupt() override { waits_.interrupt(); }

 private:
  // Gloo's own errors do not say who is missing.
  static void await_workers(const GlooOptions& options, const std::string& prefix) {
    const auto end = std::chrono::steady_clock::now() + options.timeout;
    const auto key = [&](int worker) { return prefix + "worker " + std::to_string(worker); };
    options.store->set(key(options.worker), "here");
    for (int other = 0; other < options.workers; ++other) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      try {
        options.store->get(key(other), std::max(left, std::chrono::milliseconds(1)));
      } catch (const CommError& error) {
        fail<CommError>("[gloo] worker {} has waited {} ms for worker {} to connect: {}",
                        options.worker, options.timeout.count(), other, error.what());
      }
    }
  }

  std::unique_ptr<Transfer> begin(int peer, std::uint64_t tag, std::byte* data, std::size_t bytes,
                                  bool sends) {
    auto transfer = std::make_unique<GlooTransfer>(
        waits_, context_.createUnboundBuffer(data, bytes), peer, sends);
    transfer->begin(tag);
    return transfer;
  }

  gloo::rendezvous::Context context_;
  GlooWaits waits_;
};

}  // namespace

bool has_gloo() {
  return true;
}

MakeWire gloo_wires(const GlooOptions& options) {
  require(options.store != nullptr, "[gloo] workers need a store to find one another");
  require(options.workers > 0 && options.worker >= 0 && options.worker < options.workers,
          "[gloo] worker {} of {}", options.worker, options.workers);
  require(options.address.empty() != options.interface.empty(),
          "[gloo] give either an address (\"{}\") or a network interface (\"{}\")", options.address,
          options.interface);
  require(options.timeout.count() > 0, "[gloo] the timeout must be positive, not {} ms",
          options.timeout.count());
  return [options](std::uint64_t generation) -> std::unique_ptr<Wire> {
    return std::make_unique<GlooWire>(options, fmt::format("{}/{}/", options.prefix, generation));
  };
}

}  // namespace lockstep
