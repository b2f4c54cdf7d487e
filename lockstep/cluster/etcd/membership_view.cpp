// What a worker knows of its job in etcd: all keys of the job, read once and then followed by a
// watch, and what follows from them.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/text.h"
#include "lockstep/cluster/etcd/membership_impl.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kViewPause(20);

}  // namespace

void EtcdMembership::Impl::watch_loop() {
  Lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    try {
      const etcdserverpb::RangeResponse all = client_.range(keys_.root(), soon());
      read_all(all);
      client_.watch(keys_.root(), all.header().revision(),
                    [this](const etcdserverpb::WatchResponse& response) { heard(response); });
    } catch (const CommError&) {
      // The lease says when to give up.
    }
    lock.lock();
    changed_.wait_for(lock, kViewPause, [&] { return stopping_; });
  }
}

void EtcdMembership::Impl::read_all(const etcdserverpb::RangeResponse& response) {
  const std::lock_guard lock(mutex_);
  // Another member of etcd may be behind the one that was watched; a range is not.
  entries_.clear();
  for (const etcdserverpb::KeyValue& kv : response.kvs()) keep(kv);
  revision_ = response.header().revision();
  evaluate();
}

void EtcdMembership::Impl::heard(const etcdserverpb::WatchResponse& response) {
  const std::lock_guard lock(mutex_);
  // The header may be ahead of the events.
  for (const etcdserverpb::Event& event : response.events()) {
    revision_ = std::max<std::int64_t>(revision_, event.kv().mod_revision());
    if (event.type() == etcdserverpb::Event::PUT) {
      keep(event.kv());
    } else {
      entries_.erase(event.kv().key());
    }
  }
  evaluate();
}

void EtcdMembership::Impl::keep(const etcdserverpb::KeyValue& kv) {
  static constexpr std::size_t kDigits = 21;  // of a generation, with the slash
  Entry& entry = entries_[kv.key()];
  entry.created = kv.create_revision();
  entry.modified = kv.mod_revision();
  const std::size_t after = keys_.oldest().size() + kDigits;
  const bool of_store = kv.key().size() > after && kv.key().compare(after, 6, "store/") == 0;
  const bool of_user = of_store || kv.key().starts_with(keys_.committed(""));
  entry.value = of_user ? std::string() : kv.value();
}

const EtcdMembership::Impl::Entry* EtcdMembership::Impl::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

std::optional<EtcdMembership::Impl::Newest> EtcdMembership::Impl::newest() const {
  const Entry* entry = find(keys_.generation());
  if (entry == nullptr) return std::nullopt;
  const std::optional<GenerationRecord> record = generation_record(entry->value);
  if (!record) {
    fail<DataError>(
        "[etcd] the key {} holds no generation, but \"{}\": choose another job's name, "
        "or delete it",
        keys_.generation(), shown(entry->value));
  }
  return Newest{.record = *record, .revision = entry->modified};
}

void EtcdMembership::Impl::await_revision(Lock& lock, std::int64_t revision, Time deadline) {
  changed_.wait_until(lock, deadline, [&] { return revision_ >= revision || lost_ || stopping_; });
}

etcdserverpb::TxnResponse EtcdMembership::Impl::transact(Lock& lock,
                                                         const etcdserverpb::TxnRequest& request,
                                                         Time deadline) {
  lock.unlock();
  const etcdserverpb::TxnResponse response = client_.transact(request, deadline);
  lock.lock();
  std::int64_t revision = response.succeeded() ? response.header().revision() : 0;
  for (const etcdserverpb::ResponseOp& op : response.responses()) {
    for (const etcdserverpb::KeyValue& kv : op.response_range().kvs()) {
      revision = std::max<std::int64_t>(revision, kv.mod_revision());
    }
  }
  await_revision(lock, revision, deadline);
  return response;
}

void EtcdMembership::Impl::evaluate() {
  changed_.notify_all();
  if (generation == 0 || rejoining_ || left_ || stopping_) return;
  const Entry* record = find(keys_.generation());
  const bool over = record == nullptr || record->modified != generation_revision_;
  // The keys of a generation are deleted when the one after the next begins.
  const std::optional<GenerationRecord> next =
      over && record != nullptr ? generation_record(record->value) : std::nullopt;
  const Entry* own = find(keys_.member(generation, worker));
  const bool gone = own == nullptr || own->created != member_revision_;
  if (gone && (!over || (next && next->previous == generation))) {
    return lose("its lease has ended at etcd");
  }
  // Where both were heard of at once, the failure is why the generation is over.
  if (const Entry* entry = find(keys_.failure(generation))) {
    const std::optional<FailureRecord> record = failure_record(entry->value);
    note_failure(record ? record->failure
                        : Failure{.rank = -1,
                                  .kind = FailureKind::Comm,
                                  .message = "a failure that cannot be read is in etcd"});
    return;
  }
  if (over) {
    note_failure(
        {.rank = -1,
         .kind = FailureKind::Comm,
         .message = fmt::format("generation {} of job \"{}\" is over: another one has begun",
                                generation, options_.job)});
    return;
  }
  for (int other = 0; other < static_cast<int>(members.size()); ++other) {
    if (find(keys_.member(generation, other)) || find(keys_.left(generation, other))) continue;
    queue_report({.generation = generation,
                  .failure = {.rank = other,
                              .kind = FailureKind::Comm,
                              .message = fmt::format(
                                  "worker {} ({}) has lost its lease: it has ended, or "
                                  "cannot reach etcd",
                                  other, members[static_cast<std::size_t>(other)].identity)},
                  .cause = FailureCause::Silent,
                  .unless_left = true});
    return;
  }
}

void EtcdMembership::Impl::note_failure(const Failure& failure) {
  if (failure_) return;
  failure_ = failure;
  caller_.tell(failure);
  changed_.notify_all();
}

void EtcdMembership::Impl::queue_report(Report report) {
  // The first cause counts: more than one is worth nothing, unless the first is of a worker that
  // has left.
  if (failure_ || lost_ || rejoining_ || reports_.size() > members.size()) return;
  reports_.push_back(std::move(report));
  changed_.notify_all();
}

void EtcdMembership::Impl::report_loop() {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !reports_.empty(); });
    if (stopping_) return;
    const Report report = std::move(reports_.front());
    reports_.pop_front();
    reporting_ = true;
    lock.unlock();
    write_report(report);
    lock.lock();
    reporting_ = false;
    changed_.notify_all();
  }
}

void EtcdMembership::Impl::write_report(const Report& report) {
  etcdserverpb::TxnRequest request;
  {
    const std::lock_guard lock(mutex_);
    if (report.generation != generation || lost_) return;
    *request.add_compare() = modified_in(keys_.generation(), generation_revision_);
  }
  const std::string key = keys_.failure(report.generation);
  *request.add_compare() = created_in(key, 0);
  if (report.unless_left) {
    *request.add_compare() = created_in(keys_.left(report.generation, report.failure.rank), 0);
  }
  for (const auto& [other, revision] : report.unless_changed) {
    *request.add_compare() = modified_in(other, revision);
  }
  *request.add_success() =
      put_key(key, to_text(FailureRecord{.failure = report.failure, .cause = report.cause}));
  while (true) {
    try {
      client_.transact(request, soon());
      return;
    } catch (const CommError&) {
      // Until the lease ends this worker, of which the others hear.
      const std::lock_guard lock(mutex_);
      if (stopping_ || lost_ || failure_) return;
    }
  }
}

}  // namespace lockstep
