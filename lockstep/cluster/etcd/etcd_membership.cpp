// The calls of a worker to its membership in etcd.
#include "lockstep/cluster/etcd/etcd_membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/text.h"
#include "lockstep/cluster/etcd/etcd_address.h"
#include "lockstep/cluster/etcd/membership_impl.h"

namespace lockstep {
namespace {

// etcd takes 1.5 MiB in a request unless told otherwise.
constexpr std::size_t kLargestValue = std::size_t{1} << 20;

EtcdOptions checked(EtcdOptions options) {
  check_etcd_job(options.job);
  require(options.workers > 0 && options.worker >= -1 && options.worker < options.workers,
          "[etcd] worker {} of {} cannot be", options.worker, options.workers);
  require(options.lease_timeout.count() >= 2,
          "[etcd] a lease of {} s is too short: etcd measures leases in seconds; take 2 or more",
          options.lease_timeout.count());
  require(options.progress_timeout.count() >= 10,
          "[etcd] a progress timeout of {} ms is too short: take 10 or more",
          options.progress_timeout.count());
  require(options.heartbeat_timeout.count() >= 10,
          "[etcd] a heartbeat timeout of {} ms is too short: take 10 or more",
          options.heartbeat_timeout.count());
  return options;
}

void check_value(const std::string& key, std::string_view value) {
  require(value.size() <= kLargestValue,
          "[store] key \"{}\": a value of {} bytes is too large: one may have {}", shown(key),
          value.size(), kLargestValue);
}

}  // namespace

EtcdMembership::Impl::Impl(EtcdOptions options)
    : options_(checked(std::move(options))),
      keys_(options_.job),
      identity_(options_.identity.empty() ? default_identity() : options_.identity),
      client_({.endpoints = options_.endpoints,
               .tls = options_.tls,
               .attempt_timeout = std::clamp<std::chrono::milliseconds>(
                   options_.lease_timeout / 5, std::chrono::milliseconds(500),
                   std::chrono::milliseconds(3000))}) {
  const Time deadline = Clock::now() + options_.join_timeout;
  try {
    reach_etcd(deadline);
    start_lease(deadline);
    watch_thread_ = std::thread([this] { watch_loop(); });
    report_thread_ = std::thread([this] { report_loop(); });
    progress_thread_ = std::thread([this] { progress_loop(); });
    enter(deadline);
  } catch (...) {
    leave();
    stop_threads();
    throw;
  }
}

EtcdMembership::Impl::~Impl() {
  leave();
  stop_threads();
}

void EtcdMembership::Impl::stop_threads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  client_.stop();
  for (std::thread* each : {&lease_thread_, &watch_thread_, &report_thread_, &progress_thread_}) {
    if (each->joinable()) each->join();
  }
  caller_.stop();
}

EtcdMembership::Impl::Time EtcdMembership::Impl::soon() const {
  return Clock::now() + options_.lease_timeout;
}

void EtcdMembership::Impl::check_member(const std::string& what) const {
  if (left_) fail<CommError>("{}: this worker has left", what);
  if (lost_) fail<CommError>("{}: this worker is no member any more: {}", what, *lost_);
}

etcdserverpb::TxnRequest EtcdMembership::Impl::fenced() const {
  etcdserverpb::TxnRequest request;
  *request.add_compare() = modified_in(keys_.generation(), generation_revision_);
  *request.add_compare() = created_in(keys_.member(generation, worker), member_revision_);
  return request;
}

void EtcdMembership::Impl::set(const std::string& key, std::string_view value) {
  const std::string what = fmt::format("[store] key \"{}\"", shown(key));
  check_value(key, value);
  Lock lock(mutex_);
  check_member(what);
  etcdserverpb::TxnRequest request = fenced();
  *request.add_success() = put_key(keys_.store(generation, key), std::string(value));
  const std::uint64_t number = generation;
  lock.unlock();
  if (client_.transact(request, soon()).succeeded()) return;
  fail<CommError>(
      "{}: generation {} is over for this worker: another one has begun, or its lease "
      "has ended",
      what, number);
}

std::string EtcdMembership::Impl::get(const std::string& key, std::chrono::milliseconds timeout) {
  const std::string what = fmt::format("[store] key \"{}\"", shown(key));
  const Time deadline =
      Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
  Lock lock(mutex_);
  const std::uint64_t number = generation;
  const std::string full = keys_.store(number, key);
  while (true) {
    const auto over = [&] {
      return lost_ || left_ || stopping_ || failure_ || generation != number;
    };
    const bool came = changed_.wait_until(lock, deadline, [&] { return find(full) || over(); });
    check_member(what);
    if (find(full)) {
      etcdserverpb::TxnRequest request;
      *request.add_success() = get_key(full);
      lock.unlock();
      const etcdserverpb::TxnResponse response = client_.transact(request, soon());
      const auto& kvs = response.responses(0).response_range().kvs();
      if (!kvs.empty()) return kvs[0].value();
      // It was deleted with its generation: wait to hear of that.
      lock.lock();
      const std::int64_t seen = revision_;
      changed_.wait_until(lock, deadline, [&] { return revision_ != seen || over(); });
      if (Clock::now() < deadline) continue;
    }
    if (failure_) fail<CommError>("{}: {}", what, failure_->message);
    if (generation != number) fail<CommError>("{}: generation {} is over", what, number);
    if (!came) fail<CommError>("{}: nobody has set it within {}", what, shown(timeout));
  }
}

bool EtcdMembership::Impl::still_current() {
  Lock lock(mutex_);
  if (lost_ || left_ || generation == 0) return false;
  const etcdserverpb::TxnRequest request = fenced();
  lock.unlock();
  return client_.transact(request, soon()).succeeded();
}

bool EtcdMembership::Impl::commit(const std::string& key, std::string_view value) {
  check_value(key, value);
  Lock lock(mutex_);
  if (lost_ || left_ || generation == 0) return false;
  etcdserverpb::TxnRequest request = fenced();
  lock.unlock();
  *request.add_success() = put_key(keys_.committed(key), std::string(value));
  return client_.transact(request, soon()).succeeded();
}

std::optional<std::string> EtcdMembership::Impl::committed(const std::string& key) {
  etcdserverpb::TxnRequest request;
  *request.add_success() = get_key(keys_.committed(key));
  const etcdserverpb::TxnResponse response = client_.transact(request, soon());
  const auto& kvs = response.responses(0).response_range().kvs();
  if (kvs.empty()) return std::nullopt;
  return kvs[0].value();
}

bool EtcdMembership::Impl::propose(const std::vector<int>& next) {
  Lock lock(mutex_);
  check_member("[etcd] new generation");
  std::set<int> seen;
  for (const int each : next) {
    require(each >= -1 && each < static_cast<int>(members.size()) &&
                (each < 0 || seen.insert(each).second),
            "[etcd] worker {} cannot be a member of the next generation: it is named twice, or "
            "generation {} has only {} workers",
            each, generation, members.size());
  }
  require(!next.empty(), "[etcd] a generation needs a member");
  const std::optional<Newest> now = newest();
  if (!now || (now->record.number != generation && now->record.number != given_up_)) return false;
  lock.unlock();
  const std::uint64_t step = ask().value_or(WorkerProgress{}).step;
  lock.lock();
  return open_generation(lock, now, successor(next, step), soon());
}

void EtcdMembership::Impl::rejoin(std::chrono::milliseconds timeout) {
  std::unique_ptr<HeartbeatRing> ring;
  {
    const std::lock_guard lock(mutex_);
    check_member("[etcd] rejoin");
    rejoining_ = true;
    ring = std::move(ring_);
  }
  if (ring) ring->say_goodbye();
  ring.reset();
  try {
    enter(Clock::now() + timeout);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    const Entry* entry = find(keys_.generation());
    const std::optional<GenerationRecord> record =
        entry ? generation_record(entry->value) : std::nullopt;
    if (record && record->number > generation) given_up_ = record->number;
    throw;
  }
}

void EtcdMembership::Impl::leave() {
  std::unique_ptr<HeartbeatRing> ring;
  bool lease = false;
  const Time deadline = Clock::now() + std::chrono::seconds(2);
  {
    Lock lock(mutex_);
    if (left_) return;
    // What this worker has reported must not be lost.
    changed_.wait_until(lock, deadline, [&] { return lost_ || (reports_.empty() && !reporting_); });
    left_ = true;
    changed_.notify_all();
    ring = std::move(ring_);
    lease = lease_ != 0 && !lost_;
  }
  if (!lease) return;
  try {
    say_goodbye(deadline);
    if (ring) ring->say_goodbye();
  } catch (const CommError&) {
    // The lease ends without us.
  }
}

void EtcdMembership::Impl::say_goodbye(Time deadline) {
  if (generation != 0) {
    etcdserverpb::TxnRequest request = fenced();
    *request.add_success() = put_key(keys_.left(generation, worker), "");
    client_.transact(request, deadline);
    // The last one clears away.
    const std::string left = keys_.of(generation) + "left/";
    if (client_.range(left, deadline).kvs_size() == static_cast<int>(members.size())) {
      etcdserverpb::TxnRequest clear;
      const std::string store = keys_.store(generation, "");
      *clear.add_success() = delete_keys(store, end_of_prefix(store));
      client_.transact(clear, deadline);
    }
  }
  client_.revoke(lease_, deadline);
}

void EtcdMembership::Impl::report_failure(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (lost_ || left_) return;
  Failure own = failure;
  own.rank = worker;
  own.message = own.message.substr(0, kLargestValue / 2);
  queue_report({.generation = generation, .failure = std::move(own)});
}

EtcdMembership::EtcdMembership(EtcdOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
EtcdMembership::~EtcdMembership() = default;
int EtcdMembership::worker() const {
  return impl_->read([](const Impl& impl) { return impl.worker; });
}
int EtcdMembership::workers() const {
  return impl_->read([](const Impl& impl) { return static_cast<int>(impl.members.size()); });
}
std::uint64_t EtcdMembership::generation() const {
  return impl_->read([](const Impl& impl) { return impl.generation; });
}
Store& EtcdMembership::store() {
  return *impl_;
}
std::string EtcdMembership::address() const {
  return impl_->read([](const Impl& impl) { return impl.address; });
}
std::vector<ControlMember> EtcdMembership::members() const {
  return impl_->read([](const Impl& impl) { return impl.members; });
}
bool EtcdMembership::came_later() const {
  return impl_->read([](const Impl& impl) { return impl.came_later; });
}
void EtcdMembership::on_heartbeat(std::function<WorkerProgress()> f) {
  impl_->on_heartbeat(std::move(f));
}
int EtcdMembership::newcomers() const {
  return impl_->newcomers();
}
void EtcdMembership::admit() {
  impl_->admit();
}
void EtcdMembership::on_failure(std::function<void(const Failure&)> f) {
  impl_->on_failure(std::move(f));
}
void EtcdMembership::report_failure(const Failure& failure) {
  impl_->report_failure(failure);
}
bool EtcdMembership::still_current() {
  return impl_->still_current();
}
bool EtcdMembership::commit(const std::string& key, std::string_view value) {
  return impl_->commit(key, value);
}
std::optional<std::string> EtcdMembership::committed(const std::string& key) {
  return impl_->committed(key);
}
bool EtcdMembership::propose(const std::vector<int>& members) {
  return impl_->propose(members);
}
OnFailure EtcdMembership::policy() const {
  return impl_->policy();
}
bool EtcdMembership::goes_on() const {
  return impl_->goes_on();
}
void EtcdMembership::rejoin(std::chrono::milliseconds timeout) {
  impl_->succeed(timeout);
}
void EtcdMembership::rejoin(const std::vector<int>& members, std::chrono::milliseconds timeout) {
  impl_->propose(members);
  impl_->rejoin(timeout);
}
void EtcdMembership::leave() {
  impl_->leave();
}

}  // namespace lockstep
