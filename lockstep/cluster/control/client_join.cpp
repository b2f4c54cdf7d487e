// How a worker reaches the control server and joins.
#include <fmt/format.h>
#include <grpcpp/create_channel.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/client_impl.h"
#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/grpc_common.h"
#include "lockstep/cluster/control/proof.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

// After the deadline, the server itself says who is missing; this is how long it may take.
constexpr std::chrono::seconds kLastWords(2);
// Between two attempts to reach the server.
constexpr std::chrono::milliseconds kMaxPause(500);
constexpr std::chrono::milliseconds kMinHeartbeatTimeout(10);

std::shared_ptr<grpc::Channel> make_channel(const ControlClientOptions& options,
                                            const Address& server, const std::string& target) {
  grpc::ChannelArguments arguments;
  // A connection of its own, which no proxy of the environment diverts.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxControlMessage));
  // The certificate is for the name that the user knows, not for its digits.
  if (uses_tls(options.tls)) arguments.SetSslTargetNameOverride(server.host);
  return grpc::CreateCustomChannel(target, channel_credentials(options.tls), arguments);
}

}  // namespace

ControlClient::Impl::Impl(ControlClientOptions options)
    : options_(std::move(options)),
      server_(parse_address(options_.address, "[control client] the server's address")) {
  require(options_.worker >= -1 && options_.workers >= 0,
          "[control client] worker {} of {} cannot be", options_.worker, options_.workers);
  silence_grpc();
  hello_.set_version(options_.version);
  hello_.set_job(options_.job);
  hello_.set_worker(options_.worker);
  hello_.set_workers(static_cast<std::uint32_t>(options_.workers));
  hello_.set_identity(options_.identity.empty() ? default_identity() : options_.identity);
  beat_thread_ = std::thread([this] { beat_loop(); });
  try {
    join();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      left_ = true;
    }
    changed_.notify_all();
    beat_thread_.join();
    close_stream();
    throw;
  }
}

ControlClient::Impl::~Impl() {
  leave();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  beat_thread_.join();
  caller_.stop();
  close_stream();
}

void ControlClient::Impl::join() {
  const Time begin = Clock::now();
  const Time deadline = begin + options_.join_timeout;
  std::string last = "no attempt was made";
  for (std::chrono::milliseconds pause(20);; pause = std::min(2 * pause, kMaxPause)) {
    try {
      const Reached reached = reach(server_, deadline);
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      open_stream(reached, std::max(left, std::chrono::milliseconds(1)));
      std::unique_lock lock(mutex_);
      const auto settled = [&] { return generation > 0 || refusal_ || over_; };
      changed_.wait_until(lock, deadline, [&] { return welcome_ || settled(); });
      if (welcome_) changed_.wait_until(lock, deadline + kLastWords, settled);
      if (generation > 0) return;
      if (refusal_) break;
      last = over_ ? *over_ : "it accepted the connection, but did not answer";
    } catch (const CommError& error) {
      last = error.what();
    }
    close_stream();
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, std::min(Clock::now() + pause, deadline), [&] { return stopping_; });
    if (Clock::now() >= deadline) fail_to_join(begin, last);
  }
  throw_failure(*refusal_);
}

void ControlClient::Impl::fail_to_join(Time begin, const std::string& last) const {
  fail<CommError>(
      "[control client] the control server at {} could not be joined within {}: {}; is it running, "
      "and is its address right?",
      options_.address, shown(Clock::now() - begin), last);
}

void ControlClient::Impl::open_stream(const Reached& reached, std::chrono::milliseconds left) {
  auto channel = make_channel(options_, server_, reached.target);
  const std::lock_guard lock(mutex_);
  address = reached.local;
  server_host_ = parse_address(reached.target, "the server's address").host;
  over_.reset();
  welcome_ = false;
  hello_.set_nonce(make_nonce());
  hello_.set_address(reached.local);
  hello_.set_join_timeout(static_cast<std::uint64_t>(left.count()));
  stream_ = std::make_shared<ControlStream>(
      channel, ControlStream::Handlers{
                   .message = [this](const control::ToWorker& message) { received(message); },
                   .ended =
                       [this](const std::string& why) {
                         const std::lock_guard lock(mutex_);
                         end_connection(why);
                       }});
  control::ToServer message;
  *message.mutable_hello() = hello_;
  stream_->send(std::move(message));
}

// Without the lock while the stream ends: its last reactions take it.
void ControlClient::Impl::close_stream() {
  std::shared_ptr<ControlStream> stream;
  {
    const std::lock_guard lock(mutex_);
    stream = std::exchange(stream_, nullptr);
    welcome_ = false;
  }
}

void ControlClient::Impl::received(const control::ToWorker& message) {
  using Body = control::ToWorker;
  const std::lock_guard lock(mutex_);
  const Time now = Clock::now();
  heard_ = now;
  if (!stream_) return;
  switch (message.body_case()) {
    case Body::kChallenge:
      answer(message.challenge());
      break;
    case Body::kWelcome:
      check_server(message.welcome());
      break;
    case Body::kMembers:
      if (welcome_) become_member(message.members());
      break;
    case Body::kHeartbeat:
      note_clock(message.heartbeat(), now);
      newcomers = static_cast<int>(message.heartbeat().newcomers());
      break;
    case Body::kReply: {
      const auto call = calls_.find(message.reply().id());
      if (call != calls_.end()) call->second = message.reply();
      break;
    }
    case Body::kFailure: {
      const control::FailureNotice& notice = message.failure();
      if (notice.generation() != generation) break;
      if (!failure_) goes_on = notice.goes_on();
      note_failure({.rank = notice.worker(),
                    .kind = failure_kind_of(notice.kind()),
                    .message = notice.message()});
      break;
    }
    case Body::kRefusal:
      refusal_ = Failure{.rank = worker,
                         .kind = failure_kind_of(message.refusal().kind()),
                         .message = fmt::format("[control client] the server at {} refused: {}",
                                                options_.address, message.refusal().message())};
      end_connection(refusal_->message);
      break;
    case Body::kGoodbye:
      end_connection("this worker has left");
      break;
    case Body::BODY_NOT_SET:
      break;
  }
  changed_.notify_all();
}

void ControlClient::Impl::answer(const control::Challenge& challenge) {
  const ProofSubject subject{.job = options_.job,
                             .worker = options_.worker,
                             .worker_nonce = hello_.nonce(),
                             .server_nonce = challenge.nonce()};
  // Kept to check the server's proof.
  server_nonce_ = challenge.nonce();
  control::ToServer message;
  message.mutable_proof()->set_proof(prove(options_.secret, Prover::Worker, subject));
  stream_->send(std::move(message));
}

void ControlClient::Impl::check_server(const control::Welcome& welcome) {
  const ProofSubject subject{.job = options_.job,
                             .worker = options_.worker,
                             .worker_nonce = hello_.nonce(),
                             .server_nonce = server_nonce_};
  if (!is_proof(welcome.proof(), options_.secret, Prover::Server, subject)) {
    refusal_ = Failure{.rank = worker,
                       .kind = FailureKind::Usage,
                       .message = fmt::format("[control client] what answers at {} does not know "
                                              "this job's secret",
                                              options_.address)};
    end_connection(refusal_->message);
    return;
  }
  welcome_ = true;
  heartbeat_timeout_ = std::max(timeout_of(welcome.heartbeat_timeout()), kMinHeartbeatTimeout);
  policy = static_cast<OnFailure>(std::min<std::uint32_t>(welcome.on_failure(), 2));
  next_beat_ = Clock::now();
}

void ControlClient::Impl::become_member(const control::Members& message) {
  if (message.generation() <= generation ||
      message.worker() >= static_cast<std::uint32_t>(message.members_size())) {
    return;
  }
  generation = message.generation();
  worker = static_cast<int>(message.worker());
  members.clear();
  for (const control::Member& member : message.members()) {
    members.push_back({.identity = shown(member.identity()), .address = shown(member.address())});
  }
  failure_.reset();
  caller_.reset();
  newcomers = 0;
  goes_on = false;
  step_ = 0;
  waiting_ = false;
}

void ControlClient::Impl::end_connection(const std::string& why) {
  if (over_) return;
  over_ = why;
  goes_on = false;
  changed_.notify_all();
  if (generation == 0 || left_) return;
  note_failure({.rank = worker,
                .kind = FailureKind::Comm,
                .message = fmt::format("worker {} has lost the control server at {}{}: {}", worker,
                                       options_.address, place_of_server(), why)});
}

std::string ControlClient::Impl::place_of_server() const {
  const auto there = [&](const ControlMember& member) { return member.address == server_host_; };
  const auto first = std::ranges::find_if(members, there);
  if (first == members.end() || std::ranges::all_of(members, there)) return {};
  return fmt::format(", on the host of worker {} ({})", first - members.begin(), first->identity);
}

void ControlClient::Impl::note_failure(const Failure& failure) {
  if (failure_) return;
  failure_ = failure;
  caller_.tell(failure);
  changed_.notify_all();
}

}  // namespace lockstep
