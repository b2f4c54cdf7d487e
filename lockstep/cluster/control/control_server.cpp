// The server's side of gRPC. All decisions are ControlState's; here are one reactor for each
// stream, one thread that ticks and delivers events, and the lock that both share.
#include "lockstep/cluster/control/control_server.h"

#include <fmt/format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/control.grpc.pb.h"
#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/grpc_common.h"
#include "lockstep/cluster/control/reach.h"

namespace lockstep {
namespace {

using ServerClock = std::chrono::steady_clock;

grpc::ByteBuffer buffer_of(const control::ToWorker& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::string bytes_of(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

ControlStateOptions state_options(const ControlServerOptions& options) {
  return {.workers = options.workers,
          .job = options.job,
          .secret = options.secret,
          .version = options.version,
          .heartbeat_timeout = options.heartbeat_timeout,
          .join_timeout = options.join_timeout,
          .progress_timeout = options.progress_timeout,
          .handshake_timeout = std::max<std::chrono::milliseconds>(options.heartbeat_timeout,
                                                                   std::chrono::seconds(5)),
          .on_failure = options.on_failure};
}

}  // namespace

class ControlServer::Impl {
 public:
  explicit Impl(ControlServerOptions options);
  ~Impl();

  void new_generation(const std::vector<int>& members) {
    const std::lock_guard lock(mutex_);
    state_.begin_generation(members, ServerClock::now());
    flush();
  }
  template <class Read>
  auto read(Read&& read) const {
    const std::lock_guard lock(mutex_);
    return read(state_);
  }
  int port() const { return port_; }
  std::string address() const { return with_port(host_, port_); }

 private:
  class Stream;
  class Service;

  void listen(PortRange ports);
  void run();
  void received(Stream& stream, const std::string& bytes);
  void closed(Stream& stream);
  void flush();

  ControlServerOptions options_;
  std::string host_;
  int port_ = 0;
  mutable std::mutex mutex_;
  ControlState state_;
  std::map<ControlState::SessionId, Stream*> streams_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<ControlEvent> events_;
  bool stopping_ = false;
  int live_streams_ = 0;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::thread thread_;
};

// One stream. Its members are guarded by the server's lock; gRPC calls the reactions from its own
// threads, never from within a Start function.
class ControlServer::Impl::Stream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(Impl& server, const std::string& peer) : server_(server) {
    const std::lock_guard lock(server_.mutex_);
    ++server_.live_streams_;
    id_ = server_.state_.connect(peer, ServerClock::now());
    server_.streams_[id_] = this;
    StartRead(&in_);
    server_.flush();
    if (server_.stopping_) finish();
  }

  // Closes the stream behind its last message.
  void write(const control::ToWorker& message, bool last) {
    if (finished_) return;
    queue_.push_back(buffer_of(message));
    last_ = last_ || last;
    pump();
  }

  // Closes the stream, as soon as no write is under way.
  void finish() {
    if (finished_) return;
    finished_ = true;
    server_.streams_.erase(id_);
    if (!writing_) Finish(grpc::Status::OK);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return server_.closed(*this);
    server_.received(*this, bytes_of(in_));
    StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(server_.mutex_);
    writing_ = false;
    queue_.pop_front();
    if (finished_) return Finish(grpc::Status::OK);
    if (ok) pump();
  }
  void OnCancel() override { server_.closed(*this); }
  void OnDone() override {
    {
      const std::lock_guard lock(server_.mutex_);
      --server_.live_streams_;
      server_.idle_.notify_all();
    }
    delete this;
  }
  ControlState::SessionId id() const { return id_; }

 private:
  void pump() {
    if (writing_ || finished_) return;
    if (queue_.empty()) {
      if (last_) finish();
      return;
    }
    writing_ = true;
    StartWrite(&queue_.front());
  }

  Impl& server_;
  ControlState::SessionId id_ = 0;
  grpc::ByteBuffer in_;
  std::deque<grpc::ByteBuffer> queue_;
  bool writing_ = false;
  bool last_ = false;
  bool finished_ = false;
};

// Messages come as bytes: ControlState reads them, so that it sees malformed ones too.
class ControlServer::Impl::Service final
    : public control::Control::WithRawCallbackMethod_Attend<control::Control::Service> {
 public:
  explicit Service(Impl& server) : server_(server) {}
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Attend(
      grpc::CallbackServerContext* context) override {
    return new Stream(server_, context->peer());  // deletes itself when it is done
  }

 private:
  Impl& server_;
};

ControlServer::Impl::Impl(ControlServerOptions options)
    : options_(std::move(options)), state_(state_options(options_)) {
  const ListenAddress given = parse_listen_address(options_.address, "[control server]");
  const BindAddress address = resolve_to_bind(given.host);
  require(
      address.loopback || !options_.secret.empty() || uses_tls(options_.tls),
      "[control server] {} is open to other machines: give the job a secret (LOCKSTEP_SECRET_FILE, "
      "a file with the same line on every host) or TLS files, or bind to 127.0.0.1",
      options_.address);
  host_ = address.host;
  silence_grpc();
  service_ = std::make_unique<Service>(*this);
  listen(given.ports);
  thread_ = std::thread([this] { run(); });
}

void ControlServer::Impl::listen(PortRange ports) {
  const auto credentials = server_credentials(options_.tls);
  for (int port = ports.low; port <= ports.high; ++port) {
    grpc::ServerBuilder builder;
    // Otherwise a second server would share the port with the first.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxControlMessage));
    builder.SetMaxMessageSize(static_cast<int>(kMaxControlMessage));
    builder.AddListeningPort(with_port(host_, port), credentials, &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    if (server_ && port_ > 0) return;
    server_.reset();
    // A service belongs to one server, even to one that did not start.
    service_ = std::make_unique<Service>(*this);
  }
  fail<UsageError>("[control server] cannot listen at {}: {} taken, or not of this machine",
                   options_.address, ports.low == ports.high ? "the port is" : "its ports are");
}

ControlServer::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    while (!streams_.empty()) streams_.begin()->second->finish();
  }
  wake_.notify_all();
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  if (thread_.joinable()) thread_.join();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return live_streams_ == 0; });
}

// Ticks, and delivers events without the lock, so that the owner may call the server from there.
void ControlServer::Impl::run() {
  const auto period = std::clamp<std::chrono::milliseconds>(
      options_.heartbeat_timeout / 20, std::chrono::milliseconds(5), std::chrono::milliseconds(50));
  auto next = ServerClock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_until(lock, next, [&] { return stopping_ || !events_.empty(); });
    if (ServerClock::now() >= next && !stopping_) {
      state_.tick(ServerClock::now());
      flush();
      next = ServerClock::now() + period;
    }
    const std::deque<ControlEvent> events = std::exchange(events_, {});
    if (!options_.on_event) continue;
    lock.unlock();
    for (const ControlEvent& event : events) options_.on_event(event);
    lock.lock();
  }
}

void ControlServer::Impl::received(Stream& stream, const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  state_.receive(stream.id(), bytes, ServerClock::now());
  flush();
}

void ControlServer::Impl::closed(Stream& stream) {
  const std::lock_guard lock(mutex_);
  stream.finish();
  state_.disconnect(stream.id(), ServerClock::now());
  flush();
}

// Hands what the state wants to say to the streams.
void ControlServer::Impl::flush() {
  for (const ControlState::Outgoing& each : state_.take_outgoing()) {
    const auto stream = streams_.find(each.session);
    if (stream != streams_.end()) stream->second->write(each.message, each.last);
  }
  for (ControlEvent& event : state_.take_events()) events_.push_back(std::move(event));
  if (!events_.empty()) wake_.notify_all();
}

ControlServer::ControlServer(ControlServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ControlServer::~ControlServer() = default;
int ControlServer::port() const {
  return impl_->port();
}
std::string ControlServer::address() const {
  return impl_->address();
}
void ControlServer::new_generation(const std::vector<int>& members) {
  impl_->new_generation(members);
}
std::uint64_t ControlServer::generation() const {
  return impl_->read([](const ControlState& state) { return state.generation(); });
}
std::optional<Failure> ControlServer::failure() const {
  return impl_->read([](const ControlState& state) { return state.failure(); });
}
std::uint64_t ControlServer::refused() const {
  return impl_->read([](const ControlState& state) { return state.refused(); });
}

}  // namespace lockstep
