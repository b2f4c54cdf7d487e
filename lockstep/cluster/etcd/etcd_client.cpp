#include "lockstep/cluster/etcd/etcd_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/create_channel.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/grpc_common.h"
#include "lockstep/cluster/control/text.h"
#include "lockstep/cluster/etcd/etcd.grpc.pb.h"

namespace lockstep {
namespace {

// A watch may bring many values at once.
constexpr int kMostReceived = 256 << 20;
constexpr std::chrono::milliseconds kFirstPause(10);
constexpr std::chrono::milliseconds kLongestPause(200);

// Not on the system's clock, which may be set.
gpr_timespec deadline_in(std::chrono::steady_clock::duration left) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_millis(std::max<std::int64_t>(ms, 1), GPR_TIMESPAN));
}

// Another member may do better.
bool is_worth_another(grpc::StatusCode code) {
  return code == grpc::UNAVAILABLE || code == grpc::DEADLINE_EXCEEDED || code == grpc::CANCELLED ||
         code == grpc::ABORTED || code == grpc::RESOURCE_EXHAUSTED;
}

std::string text_of(const grpc::Status& status) {
  return status.error_message().empty() ? "no answer" : shown(status.error_message());
}

std::shared_ptr<grpc::Channel> channel_to(const std::string& endpoint, const TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  // A connection of its own, which no proxy of the environment diverts.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(kMostReceived);
  return grpc::CreateCustomChannel(endpoint, channel_credentials(tls), arguments);
}

}  // namespace

struct EtcdClient::Member {
  explicit Member(const std::shared_ptr<grpc::Channel>& channel)
      : channel(channel),
        kv(etcdserverpb::KV::NewStub(channel)),
        lease(etcdserverpb::Lease::NewStub(channel)),
        watch(etcdserverpb::Watch::NewStub(channel)) {}
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
};

// One call to one member, which stop() cancels.
class EtcdClient::Attempt {
 public:
  Attempt(EtcdClient& client, std::size_t member) : member(member), client_(client) {
    const std::lock_guard lock(client.mutex_);
    if (client.stopped_) context.TryCancel();
    client.attempts_.insert(this);
  }
  ~Attempt() {
    const std::lock_guard lock(client_.mutex_);
    client_.attempts_.erase(this);
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  grpc::ClientContext context;
  const std::size_t member;
  bool endless = false;  // a watch: ends when its member does not answer other calls

 private:
  EtcdClient& client_;
};

EtcdClient::EtcdClient(EtcdClientOptions options) : options_(std::move(options)) {
  require(!options_.endpoints.empty(), "[etcd] no endpoint is given: write etcd://host:port");
  silence_grpc();
  for (const std::string& endpoint : options_.endpoints) {
    members_.push_back(std::make_unique<Member>(channel_to(endpoint, options_.tls)));
  }
}

EtcdClient::~EtcdClient() = default;

std::string EtcdClient::name() const {
  return fmt::format("{}", fmt::join(options_.endpoints, ","));
}

std::size_t EtcdClient::current() {
  const std::lock_guard lock(mutex_);
  return current_;
}

void EtcdClient::move_on(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (current_ == index) current_ = (index + 1) % members_.size();
  for (Attempt* attempt : attempts_) {
    if (attempt->endless && attempt->member == index) attempt->context.TryCancel();
  }
}

void EtcdClient::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (Attempt* attempt : attempts_) attempt->context.TryCancel();
  changed_.notify_all();
}

// gRPC connects only while somebody waits for it. A call on a channel that failed before ends at
// once, and one that waits does so to its deadline: neither finds the members that live.
grpc::Status EtcdClient::connect(Member& member, Time deadline) {
  const grpc::Status failed(grpc::UNAVAILABLE, "it accepts no connection");
  const Time begin = Clock::now();
  grpc_connectivity_state state = member.channel->GetState(true);
  while (state != GRPC_CHANNEL_READY) {
    const Time limit = state == GRPC_CHANNEL_TRANSIENT_FAILURE
                           ? std::min(deadline, begin + kLongestPause)
                           : deadline;
    const Clock::duration left = limit - Clock::now();
    if (left.count() <= 0 || is_stopped()) return failed;
    member.channel->WaitForStateChange(state,
                                       deadline_in(std::min<Clock::duration>(left, kLongestPause)));
    const grpc_connectivity_state next = member.channel->GetState(true);
    if (state != next && next == GRPC_CHANNEL_TRANSIENT_FAILURE) return failed;
    state = next;
  }
  return grpc::Status::OK;
}

bool EtcdClient::is_stopped() {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

template <class Call>
void EtcdClient::call(const char* what, Time deadline, Call&& attempt) {
  for (std::chrono::milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const std::size_t index = current();
    const Time limit = std::min(deadline, Clock::now() + options_.attempt_timeout);
    grpc::Status status = connect(*members_[index], limit);
    if (status.ok()) {
      Attempt now(*this, index);
      now.context.set_deadline(deadline_in(limit - Clock::now()));
      status = attempt(*members_[index], now.context);
    }
    if (status.ok()) return;
    if (!is_worth_another(status.error_code())) {
      fail<CommError>("[etcd] {}: the etcd at {} refused: {}", what, options_.endpoints[index],
                      text_of(status));
    }
    move_on(index);
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, std::min(Clock::now() + pause, deadline), [&] { return stopped_; });
    if (stopped_) fail<CommError>("[etcd] {}: this worker does not use etcd any more", what);
    if (Clock::now() >= deadline) {
      fail<CommError>(
          "[etcd] {}: no etcd of {} answered in time: {}; is it running, and has it a "
          "majority of its members?",
          what, name(), text_of(status));
    }
  }
}

etcdserverpb::TxnResponse EtcdClient::transact(const etcdserverpb::TxnRequest& request,
                                               Time deadline) {
  etcdserverpb::TxnResponse response;
  call("transaction", deadline, [&](Member& member, grpc::ClientContext& context) {
    response.Clear();
    return member.kv->Txn(&context, request, &response);
  });
  return response;
}

etcdserverpb::RangeResponse EtcdClient::range(const std::string& prefix, Time deadline) {
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(end_of_prefix(prefix));
  etcdserverpb::RangeResponse response;
  call("range", deadline, [&](Member& member, grpc::ClientContext& context) {
    response.Clear();
    return member.kv->Range(&context, request, &response);
  });
  return response;
}

EtcdClient::Granted EtcdClient::grant(std::chrono::seconds ttl, Time deadline) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl.count());
  etcdserverpb::LeaseGrantResponse response;
  Granted granted;
  call("lease", deadline, [&](Member& member, grpc::ClientContext& context) {
    response.Clear();
    granted.sent = Clock::now();
    return member.lease->LeaseGrant(&context, request, &response);
  });
  if (!response.error().empty() || response.ttl() <= 0) {
    fail<CommError>("[etcd] lease: the etcd at {} gave none of {} s: {}", name(), ttl.count(),
                    shown(response.error()));
  }
  granted.id = response.id();
  granted.ttl = std::chrono::seconds(response.ttl());
  return granted;
}

void EtcdClient::revoke(std::int64_t lease, Time deadline) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  call("end of a lease", deadline, [&](Member& member, grpc::ClientContext& context) {
    etcdserverpb::LeaseRevokeResponse response;
    const grpc::Status status = member.lease->LeaseRevoke(&context, request, &response);
    return status.error_code() == grpc::NOT_FOUND ? grpc::Status::OK : status;
  });
}

EtcdClient::Renewal EtcdClient::renew(std::int64_t lease, Time deadline) {
  Attempt attempt(*this, current());
  const Time limit = std::min(deadline, Clock::now() + options_.attempt_timeout);
  if (const grpc::Status status = connect(*members_[attempt.member], limit); !status.ok()) {
    move_on(attempt.member);
    return {.error = fmt::format("{}: {}", options_.endpoints[attempt.member], text_of(status))};
  }
  attempt.context.set_deadline(deadline_in(limit - Clock::now()));
  // A member without a leader says so at once.
  attempt.context.AddMetadata("hasleader", "true");
  const auto stream = members_[attempt.member]->lease->LeaseKeepAlive(&attempt.context);
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  Renewal renewal;
  renewal.answered = stream->Write(request) && stream->Read(&response);
  if (renewal.answered) {
    renewal.ttl = std::chrono::seconds(std::max<std::int64_t>(response.ttl(), 0));
    stream->WritesDone();
    attempt.context.TryCancel();
    (void)stream->Finish();
    return renewal;
  }
  renewal.error =
      fmt::format("{}: {}", options_.endpoints[attempt.member], text_of(stream->Finish()));
  move_on(attempt.member);
  return renewal;
}

std::string EtcdClient::watch(const std::string& prefix, std::int64_t after,
                              const std::function<void(const etcdserverpb::WatchResponse&)>& f) {
  Attempt attempt(*this, current());
  {
    const std::lock_guard lock(mutex_);
    attempt.endless = true;
  }
  const Time limit = Clock::now() + options_.attempt_timeout;
  if (const grpc::Status status = connect(*members_[attempt.member], limit); !status.ok()) {
    move_on(attempt.member);
    return text_of(status);
  }
  attempt.context.AddMetadata("hasleader", "true");
  const auto stream = members_[attempt.member]->watch->Watch(&attempt.context);
  etcdserverpb::WatchRequest request;
  auto& create = *request.mutable_create_request();
  create.set_key(prefix);
  create.set_range_end(end_of_prefix(prefix));
  create.set_start_revision(after + 1);
  etcdserverpb::WatchResponse response;
  bool open = stream->Write(request);
  std::string why;
  while (open && stream->Read(&response)) {
    if (response.canceled()) {
      why = response.cancel_reason();
      break;
    }
    f(response);
  }
  attempt.context.TryCancel();
  const grpc::Status status = stream->Finish();
  move_on(attempt.member);
  return why.empty() ? text_of(status) : shown(why);
}

etcdserverpb::Compare created_in(const std::string& key, std::int64_t revision) {
  etcdserverpb::Compare compare;
  compare.set_result(etcdserverpb::Compare::EQUAL);
  compare.set_target(etcdserverpb::Compare::CREATE);
  compare.set_key(key);
  compare.set_create_revision(revision);
  return compare;
}

etcdserverpb::Compare none_with(const std::string& prefix) {
  etcdserverpb::Compare compare = created_in(prefix, 0);
  compare.set_range_end(end_of_prefix(prefix));
  return compare;
}

etcdserverpb::Compare modified_in(const std::string& key, std::int64_t revision) {
  etcdserverpb::Compare compare;
  compare.set_result(etcdserverpb::Compare::EQUAL);
  compare.set_target(etcdserverpb::Compare::MOD);
  compare.set_key(key);
  compare.set_mod_revision(revision);
  return compare;
}

etcdserverpb::RequestOp put_key(const std::string& key, std::string value, std::int64_t lease) {
  etcdserverpb::RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(std::move(value));
  op.mutable_request_put()->set_lease(lease);
  return op;
}

etcdserverpb::RequestOp get_key(const std::string& key) {
  etcdserverpb::RequestOp op;
  op.mutable_request_range()->set_key(key);
  return op;
}

etcdserverpb::RequestOp delete_keys(const std::string& begin, const std::string& end) {
  etcdserverpb::RequestOp op;
  op.mutable_request_delete_range()->set_key(begin);
  op.mutable_request_delete_range()->set_range_end(end);
  return op;
}

std::string end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

}  // namespace lockstep
