// Gloo sends a message once the receiver has said that it is ready for it, so a receive that is
// posted early saves a round trip. Its waits cannot be limited in time: a wait that times out
// closes all connections. They can be aborted, however; a thread that does next to nothing aborts
// those that last, so that the waiter can look around.
#include "lockstep/comm/gloo/gloo_wire.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
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

gloo::transport::tcp::attr attributes_of(const GlooOptions& options) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.address;
  attributes.iface = options.interface;
  return attributes;
}

// Gloo looks for the interface of an address by its bytes, which have to have port 0; then, when a
// pair is made, it binds to the same bytes. They are const for it, but are replaced here in
// between: an object of the same type is made in their place.
class GlooPortDevice final : public gloo::transport::tcp::Device {
 public:
  using Device::Device;
  void set_address(const gloo::transport::tcp::attr& attributes) {
    auto* const place = const_cast<gloo::transport::tcp::attr*>(&attr_);
    std::destroy_at(place);
    std::construct_at(place, attributes);
  }
};

// What listens for one worker. A device of Gloo's gives all of its pairs the same port, which works
// for port 0 only; so each pair has a device, if ports are given.
struct GlooListener {
  int peer = -1;
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::transport::Context> context;
};

void set_port(sockaddr_storage& address, int port) {
  const auto digits = htons(static_cast<std::uint16_t>(port));
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = digits;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = digits;
  }
}

// Whether nobody listens there: cheaper to find out than by making a device.
bool is_free(const gloo::transport::tcp::attr& attributes) {
  const int fd = socket(attributes.ai_addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&attributes.ai_addr),
                         static_cast<socklen_t>(attributes.ai_addrlen)) == 0 &&
                    listen(fd, 1) == 0;
  close(fd);
  return free;
}

// A free port of the range for each other worker. Workers of a host begin at different ones.
std::vector<GlooListener> listen_in_range(const GlooOptions& options) {
  const auto any_port = gloo::transport::tcp::CreateDeviceAttr(attributes_of(options));
  auto attributes = any_port;
  const int ports = options.ports.high - options.ports.low + 1;
  const int begin = options.worker * (options.workers - 1) % ports;
  int tried = 0;
  std::vector<GlooListener> listeners;
  for (int peer = 0; peer < options.workers; ++peer) {
    if (peer == options.worker) continue;
    GlooListener listener{.peer = peer, .device = nullptr, .context = nullptr};
    while (listener.context == nullptr) {
      if (tried == ports) {
        fail<CommError>(
            "[gloo] worker {} found {} free ports in {} to {} at {}, and needs {} to be connected "
            "with {} workers: give a larger range",
            options.worker, listeners.size(), options.ports.low, options.ports.high,
            options.address.empty() ? options.interface : options.address, options.workers - 1,
            options.workers);
      }
      set_port(attributes.ai_addr, options.ports.low + (begin + tried++) % ports);
      if (!is_free(attributes)) continue;
      auto device = std::make_shared<GlooPortDevice>(any_port);
      device->set_address(attributes);
      listener.device = device;
      auto context = device->createContext(options.worker, options.workers);
      context->setTimeout(options.timeout);
      try {
        context->createPair(peer);
        listener.context = std::move(context);
      } catch (const std::exception&) {
        continue;  // somebody else was faster
      }
    }
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

class GlooWire final : public Wire {
 public:
  GlooWire(const GlooOptions& options, const std::string& prefix)
      : worker_(options.worker), workers_(options.workers) {
    const NoSigpipe no_sigpipe;
    // A port that is taken is told before others are waited for.
    std::vector<GlooListener> listeners;
    try {
      if (!options.ports.any()) listeners = listen_in_range(options);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      fail<CommError>("[gloo] worker {} cannot listen at {}: {}", options.worker,
                      options.address.empty() ? options.interface : options.address, error.what());
    }
    await_workers(options, prefix);
    try {
      GlooStore store(*options.store, prefix, options.timeout);
      if (options.ports.any()) {
        connect_all(options, store);
      } else {
        connect_each(std::move(listeners), store);
      }
    } catch (const std::exception& error) {
      fail<CommError>("[gloo] worker {} of {} could not connect with the others from {}: {}",
                      options.worker, options.workers,
                      options.address.empty() ? options.interface : options.address, error.what());
    }
  }

  int worker() const override { return worker_; }
  int workers() const override { return workers_; }
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
  // One device, and Gloo's own way to connect with all.
  void connect_all(const GlooOptions& options, GlooStore& store) {
    all_ = std::make_unique<gloo::rendezvous::Context>(worker_, workers_);
    auto device = gloo::transport::tcp::CreateDevice(attributes_of(options));
    all_->setTimeout(options.timeout);
    all_->connectFullMesh(store, device);
  }
  // In the order of the workers, as Gloo does it.
  void connect_each(std::vector<GlooListener> listeners, GlooStore& store) {
    const auto key = [](int from, int to) { return fmt::format("address {} {}", from, to); };
    each_.resize(static_cast<std::size_t>(workers_));
    for (const GlooListener& one : listeners) {
      store.set(key(worker_, one.peer), one.context->getPair(one.peer)->address().bytes());
    }
    for (GlooListener& one : listeners) {
      one.context->getPair(one.peer)->connect(store.get(key(one.peer, worker_)));
      each_[static_cast<std::size_t>(one.peer)] = std::move(one);
    }
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer(int peer, std::byte* data,
                                                         std::size_t bytes) {
    if (all_ != nullptr) return all_->createUnboundBuffer(data, bytes);
    return each_[static_cast<std::size_t>(peer)].context->createUnboundBuffer(data, bytes);
  }

  // Gloo's own errors do not say who is missing.
  static void await_workers(const GlooOptions& options, const std::string& prefix) {
    using Clock = std::chrono::steady_clock;
    using std::chrono::milliseconds;
    const auto begin = Clock::now();
    const auto waited = [&] {
      return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    };
    const auto key = [&](int worker) { return prefix + "worker " + std::to_string(worker); };
    options.store->set(key(options.worker), "here");
    for (int other = 0; other < options.workers; ++other) {
      try {
        options.store->get(key(other), std::max(options.timeout - waited(), milliseconds(1)));
      } catch (const CommError& error) {
        fail<CommError>("[gloo] worker {} has waited {} ms for worker {} to connect: {}",
                        options.worker, waited().count(), other, error.what());
      }
    }
  }

  std::unique_ptr<Transfer> begin(int peer, std::uint64_t tag, std::byte* data, std::size_t bytes,
                                  bool sends) {
    auto transfer = std::make_unique<GlooTransfer>(waits_, buffer(peer, data, bytes), peer, sends);
    transfer->begin(tag);
    return transfer;
  }

  int worker_;
  int workers_;
  std::unique_ptr<gloo::rendezvous::Context> all_;
  std::vector<GlooListener> each_;  // by worker, where ports are given
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
