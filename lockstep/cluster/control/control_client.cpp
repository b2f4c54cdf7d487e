// The calls of a worker to the control server.
#include "lockstep/cluster/control/control_client.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/client_impl.h"
#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

std::uint64_t milliseconds_of(std::chrono::milliseconds time) {
  return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
}

}  // namespace

void ControlClient::Impl::check_open(const std::string& what) const {
  if (!over_ && !left_) return;
  fail<CommError>(
      "{}: {}", what,
      left_ ? std::string("this worker has left")
            : fmt::format("the control server at {} is lost: {}", options_.address, *over_));
}

std::string ControlClient::Impl::call(std::chrono::milliseconds timeout, const std::string& what,
                                      const Fill& fill) {
  std::unique_lock lock(mutex_);
  check_open(what);
  const std::uint64_t id = ++last_call_;
  const auto slot = calls_.emplace(id, std::nullopt).first;
  control::ToServer message;
  fill(message, id);
  stream_->send(std::move(message));
  // The server keeps the timeout; where it does not, the connection is cut off.
  const Time deadline =
      Clock::now() + timeout_of(milliseconds_of(timeout)) + 2 * heartbeat_timeout_;
  changed_.wait_until(lock, deadline, [&] { return slot->second || over_; });
  const std::optional<control::Reply> reply = std::move(slot->second);
  calls_.erase(slot);
  if (reply && reply->ok()) return reply->text();
  if (reply) {
    throw_failure(
        {.rank = worker, .kind = failure_kind_of(reply->kind()), .message = reply->text()});
  }
  check_open(what);
  fail<CommError>("{}: the control server at {} did not answer", what, options_.address);
}

void ControlClient::Impl::set(const std::string& key, std::string_view value) {
  require(value.size() <= kMaxStoreValue,
          "[store] key \"{}\": a value of {} bytes is too large: one may have {}", shown(key),
          value.size(), kMaxStoreValue);
  call({}, fmt::format("[store] key \"{}\"", shown(key)),
       [&](control::ToServer& message, std::uint64_t id) {
         control::Set& set = *message.mutable_set();
         set.set_id(id);
         set.set_generation(generation);
         set.set_key(key);
         set.set_value(std::string(value));
       });
}

std::string ControlClient::Impl::get(const std::string& key, std::chrono::milliseconds timeout) {
  return call(timeout, fmt::format("[store] key \"{}\"", shown(key)),
              [&](control::ToServer& message, std::uint64_t id) {
                control::Get& get = *message.mutable_get();
                get.set_id(id);
                get.set_generation(generation);
                get.set_key(key);
                get.set_timeout(milliseconds_of(timeout));
              });
}

void ControlClient::Impl::barrier(const std::string& name, std::chrono::milliseconds timeout) {
  call(timeout, fmt::format("[barrier] \"{}\"", shown(name)),
       [&](control::ToServer& message, std::uint64_t id) {
         control::Barrier& barrier = *message.mutable_barrier();
         barrier.set_id(id);
         barrier.set_generation(generation);
         barrier.set_name(name);
         barrier.set_timeout(milliseconds_of(timeout));
       });
}

void ControlClient::Impl::rejoin(std::chrono::milliseconds timeout) {
  call(timeout, "[rejoin]", [&](control::ToServer& message, std::uint64_t id) {
    control::Rejoin& rejoin = *message.mutable_rejoin();
    rejoin.set_id(id);
    rejoin.set_generation(generation);
    rejoin.set_timeout(milliseconds_of(timeout));
  });
}

void ControlClient::Impl::report_failure(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (over_ || left_) return;
  control::ToServer message;
  control::Report& report = *message.mutable_report();
  report.set_generation(generation);
  report.set_kind(static_cast<std::uint32_t>(failure.kind));
  report.set_message(failure.message.substr(0, kMaxStoreValue));
  stream_->send(std::move(message));
}

void ControlClient::Impl::admit() {
  const std::lock_guard lock(mutex_);
  if (over_ || left_) return;
  control::ToServer message;
  message.mutable_admit()->set_generation(generation);
  stream_->send(std::move(message));
}

void ControlClient::Impl::leave() {
  std::unique_lock lock(mutex_);
  if (left_) return;
  left_ = true;
  if (over_) return;
  control::ToServer message;
  message.mutable_leave();
  stream_->send(std::move(message));
  changed_.wait_for(lock, heartbeat_timeout_, [&] { return over_.has_value(); });
}

ControlClient::ControlClient(ControlClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ControlClient::~ControlClient() = default;
int ControlClient::worker() const {
  return impl_->read([](const Impl& impl) { return impl.worker; });
}
int ControlClient::workers() const {
  return impl_->read([](const Impl& impl) { return static_cast<int>(impl.members.size()); });
}
std::uint64_t ControlClient::generation() const {
  return impl_->read([](const Impl& impl) { return impl.generation; });
}
Store& ControlClient::store() {
  return *impl_;
}
std::string ControlClient::address() const {
  return impl_->read([](const Impl& impl) { return impl.address; });
}
std::vector<ControlMember> ControlClient::members() const {
  return impl_->read([](const Impl& impl) { return impl.members; });
}
ClockOffset ControlClient::clock_offset() const {
  return impl_->read([](const Impl& impl) { return impl.clock; });
}
void ControlClient::on_failure(std::function<void(const Failure&)> f) {
  impl_->on_failure(std::move(f));
}
void ControlClient::report_failure(const Failure& failure) {
  impl_->report_failure(failure);
}
OnFailure ControlClient::policy() const {
  return impl_->read([](const Impl& impl) { return impl.policy; });
}
int ControlClient::newcomers() const {
  return impl_->read([](const Impl& impl) { return impl.newcomers; });
}
void ControlClient::admit() {
  impl_->admit();
}
bool ControlClient::goes_on() const {
  return impl_->read([](const Impl& impl) { return impl.goes_on; });
}
bool ControlClient::commit(const std::string& key, std::string_view value) {
  try {
    impl_->set(std::string(kCommitPrefix) + key, value);
    return true;
  } catch (const CommError&) {  // refused, or cut off from the server, which has noticed it, too
    return false;
  }
}
void ControlClient::barrier(const std::string& name, std::chrono::milliseconds timeout) {
  impl_->barrier(name, timeout);
}
void ControlClient::announce(const std::string& activity) {
  impl_->announce(activity);
}
void ControlClient::progress(std::uint64_t step, bool waiting_for_others) {
  impl_->progress(step, waiting_for_others);
}
void ControlClient::on_heartbeat(std::function<WorkerProgress()> f) {
  impl_->on_heartbeat(std::move(f));
}
void ControlClient::rejoin(std::chrono::milliseconds timeout) {
  impl_->rejoin(timeout);
}
void ControlClient::leave() {
  impl_->leave();
}

}  // namespace lockstep
