// How a worker becomes a member. The key `generation` says which places the newest generation has.
// A worker takes one by creating its member key, bound to its lease; whoever first sees that all
// places are taken writes `formed`, which makes those processes the members. Where a generation is
// formed but none of its members lives, an earlier run has ended: a new one is begun.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/proof.h"
#include "lockstep/cluster/control/reach.h"
#include "lockstep/cluster/control/text.h"
#include "lockstep/cluster/etcd/membership_impl.h"

namespace lockstep {
namespace {

// A process that was killed stays a member until its lease ends; etcd may take this much longer.
constexpr std::chrono::seconds kLateEnd(2);
constexpr std::chrono::milliseconds kJoinPause(100);

std::string in_hex(const std::string& bytes) {
  std::string text;
  for (const char each : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(each));
  return text;
}

}  // namespace

// The first endpoint that accepts a connection tells by which address this host is reached.
void EtcdMembership::Impl::reach_etcd(Time deadline) {
  const Time begin = Clock::now();
  while (true) {
    std::string error;
    for (const std::string& endpoint : options_.endpoints) {
      try {
        const Time until = std::min(deadline, Clock::now() + std::chrono::seconds(2));
        address = reach(parse_address(endpoint, "an endpoint of etcd"), until).local;
        return;
      } catch (const CommError& caught) {
        error = caught.what();
      }
    }
    Lock lock(mutex_);
    changed_.wait_until(lock, std::min(deadline, Clock::now() + kJoinPause),
                        [&] { return stopping_; });
    if (Clock::now() >= deadline) {
      fail<CommError>(
          "[etcd] no etcd of {} could be reached within {}: {}; is it running, and are "
          "the addresses right?",
          client_.name(), shown(Clock::now() - begin), error);
    }
  }
}

void EtcdMembership::Impl::enter(Time deadline) {
  const Time begin = Clock::now();
  Lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return revision_ > 0 || lost_; });
  while (true) {
    if (lost_) fail<CommError>("[etcd] this worker cannot join: {}", *lost_);
    if (Clock::now() >= deadline) fail_to_join(begin);
    const std::int64_t seen = revision_;
    const Step step = take_step(lock, deadline);
    if (step == Step::Member) return;
    if (step == Step::Again) continue;
    const Time until = other_ ? std::min(deadline, other_->since + ttl_ + kLateEnd) : deadline;
    changed_.wait_until(lock, until, [&] { return revision_ != seen || lost_; });
  }
}

EtcdMembership::Impl::Step EtcdMembership::Impl::take_step(Lock& lock, Time deadline) {
  const std::optional<Newest> now = newest();
  if (!now) {
    open_generation(lock, now, first_generation(), deadline);
    return Step::Again;
  }
  if (now->record.number <= generation) return Step::Wait;
  return find(keys_.formed(now->record.number)) ? enter_formed(lock, *now, deadline)
                                                : enter_open(lock, *now, deadline);
}

EtcdMembership::Impl::Step EtcdMembership::Impl::enter_formed(Lock& lock, const Newest& newest,
                                                              Time deadline) {
  const std::uint64_t number = newest.record.number;
  if (generation != 0) {
    fail<CommError>(
        "[etcd] generation {} of job \"{}\" has begun without worker {} of generation {}", number,
        options_.job, worker, generation);
  }
  if (has_members(newest.record)) {
    check_twice(number, options_.worker);
    if (!other_) wait_as_newcomer(lock, deadline);
    return Step::Wait;
  }
  open_generation(lock, newest, first_generation(), deadline);
  return Step::Again;
}

EtcdMembership::Impl::Step EtcdMembership::Impl::enter_open(Lock& lock, const Newest& newest,
                                                            Time deadline) {
  const GenerationRecord& record = newest.record;
  const bool other_size =
      record.previous == 0 && record.places.size() != static_cast<std::size_t>(options_.workers);
  if (generation == 0 && (other_size || record.previous != 0) && !has_members(record)) {
    // Left over from a run that ended before it had formed.
    open_generation(lock, newest, first_generation(), deadline);
    return Step::Again;
  }
  require(generation != 0 || !other_size,
          "[etcd] this worker expects {} workers, but those of job \"{}\" at {} expect {}",
          options_.workers, options_.job, client_.name(), record.places.size());
  const int place = find_place(record);
  if (place < 0) return Step::Wait;
  if (const Entry* entry = find(keys_.member(record.number, place))) {
    if (entry->created == place_revision_) {
      give_up_place(lock, record.number, place, deadline);
      return Step::Again;
    }
    if (turn_out(lock, newest, place, deadline)) return Step::Again;
    check_twice(record.number, place);
    return Step::Wait;
  }
  other_.reset();
  if (!take_place(lock, newest, place, deadline)) return Step::Again;
  return await_formed(lock, newest, place, deadline);
}

// -1: none is free.
int EtcdMembership::Impl::find_place(const GenerationRecord& record) const {
  if (generation != 0) {
    const auto own = std::find(record.places.begin(), record.places.end(), worker);
    if (record.previous != generation || own == record.places.end()) {
      fail<CommError>(
          "[etcd] generation {} of job \"{}\" has no place for worker {} of generation "
          "{}: it has ended for this worker",
          record.number, options_.job, worker, generation);
    }
    return static_cast<int>(own - record.places.begin());
  }
  if (record.previous == 0 && options_.worker >= 0) return options_.worker;
  const auto is_free = [&](int place) {
    return place >= 0 && place < static_cast<int>(record.places.size()) &&
           record.places[static_cast<std::size_t>(place)] < 0 && !avoided_.contains(place) &&
           !find(keys_.member(record.number, place));
  };
  if (is_free(options_.worker)) return options_.worker;
  for (int place = 0; place < static_cast<int>(record.places.size()); ++place) {
    if (is_free(place)) return place;
  }
  return -1;
}

bool EtcdMembership::Impl::has_members(const GenerationRecord& record) const {
  const auto any = [&](std::uint64_t number) {
    const std::string prefix = keys_.members(number);
    const auto first = entries_.lower_bound(prefix);
    return first != entries_.end() && first->first.starts_with(prefix);
  };
  return any(record.number) || (record.previous != 0 && any(record.previous));
}

// A worker with a number of its own takes the place of one that can be any.
bool EtcdMembership::Impl::turn_out(Lock& lock, const Newest& newest, int place, Time deadline) {
  if (generation != 0 || place != options_.worker) return false;
  const std::string key = keys_.member(newest.record.number, place);
  const Entry& entry = *find(key);
  const std::optional<MemberRecord> member = member_record(entry.value);
  if (!member || !member->any) return false;
  etcdserverpb::TxnRequest request;
  *request.add_compare() = created_in(key, entry.created);
  *request.add_compare() = created_in(keys_.formed(newest.record.number), 0);
  *request.add_success() = delete_keys(key, "");
  *request.add_failure() = get_key(key);
  *request.add_failure() = get_key(keys_.formed(newest.record.number));
  transact(lock, request, deadline);
  return true;
}

// Of an earlier attempt, whose ring is closed.
void EtcdMembership::Impl::give_up_place(Lock& lock, std::uint64_t number, int place,
                                         Time deadline) {
  const std::string key = keys_.member(number, place);
  etcdserverpb::TxnRequest request;
  *request.add_compare() = created_in(key, place_revision_);
  *request.add_success() = delete_keys(key, "");
  transact(lock, request, deadline);
  place_revision_ = 0;
}

void EtcdMembership::Impl::check_twice(std::uint64_t number, int place) {
  const Entry* entry = find(keys_.member(number, place));
  if (entry == nullptr) {
    other_.reset();
    return;
  }
  const Time now = Clock::now();
  if (!other_ || other_->created != entry->created)
    other_ = {.created = entry->created, .since = now};
  if (now < other_->since + ttl_ + kLateEnd) return;
  const std::optional<MemberRecord> member = member_record(entry->value);
  fail<UsageError>(
      "[etcd] worker {} of job \"{}\" at {} is twice: {} has this number, too, and "
      "lives; give every worker a number, and every job a name, of its own",
      place, options_.job, client_.name(), member ? member->identity : "a process");
}

// The members hear of it, and begin a generation with it when it suits them (admit). With Stop,
// the generation keeps its members.
void EtcdMembership::Impl::wait_as_newcomer(Lock& lock, Time deadline) {
  const std::string key = keys_.newcomer(lease_);
  if (options_.on_failure == OnFailure::Stop || find(key)) return;
  etcdserverpb::TxnRequest request;
  *request.add_success() = put_key(key, identity_, lease_);
  transact(lock, request, deadline);
}

GenerationRecord EtcdMembership::Impl::first_generation() const {
  return {.places = std::vector<int>(static_cast<std::size_t>(options_.workers), -1)};
}

bool EtcdMembership::Impl::open_generation(Lock& lock, const std::optional<Newest>& before,
                                           GenerationRecord record, Time deadline,
                                           bool unless_failed) {
  record.number = before ? before->record.number + 1 : 1;
  const std::uint64_t previous = record.previous;
  etcdserverpb::TxnRequest request;
  if (unless_failed) *request.add_compare() = created_in(keys_.failure(previous), 0);
  if (previous != 0) {
    *request.add_compare() = created_in(keys_.member(generation, worker), member_revision_);
  } else if (before) {
    // Only over one that nobody is in.
    *request.add_compare() = none_with(keys_.members(before->record.number));
    *request.add_compare() = none_with(keys_.members(before->record.previous));
  }
  *request.add_compare() = before ? modified_in(keys_.generation(), before->revision)
                                  : created_in(keys_.generation(), 0);
  *request.add_success() = put_key(keys_.generation(), to_text(record));
  // Who rejoins is known by its key of the previous generation.
  *request.add_success() =
      delete_keys(keys_.oldest(), keys_.of(previous != 0 ? previous : record.number));
  *request.add_failure() = get_key(keys_.generation());
  return transact(lock, request, deadline).succeeded();
}

bool EtcdMembership::Impl::take_place(Lock& lock, const Newest& newest, int place, Time deadline) {
  lock.unlock();
  auto ring = std::make_unique<HeartbeatRing>(HeartbeatRingOptions{
      .host = address, .ports = options_.ports, .timeout = options_.heartbeat_timeout});
  const std::string key = keys_.member(newest.record.number, place);
  const std::string value = to_text(MemberRecord{.identity = identity_,
                                                 .address = address,
                                                 .port = ring->port(),
                                                 .any = options_.worker < 0,
                                                 .seat = options_.worker});
  etcdserverpb::TxnRequest request;
  *request.add_compare() = modified_in(keys_.generation(), newest.revision);
  *request.add_compare() = created_in(key, 0);
  *request.add_compare() = created_in(keys_.formed(newest.record.number), 0);
  *request.add_success() = put_key(key, value, lease_);
  *request.add_success() = delete_keys(keys_.newcomer(lease_), "");
  *request.add_failure() = get_key(key);
  *request.add_failure() = get_key(keys_.generation());
  *request.add_failure() = get_key(keys_.formed(newest.record.number));
  lock.lock();
  const etcdserverpb::TxnResponse response = transact(lock, request, deadline);
  if (response.succeeded()) {
    place_revision_ = response.header().revision();
  } else {
    // An earlier attempt without an answer may have been carried out.
    const auto& kvs = response.responses(0).response_range().kvs();
    if (kvs.empty() || kvs[0].lease() != lease_ || kvs[0].value() != value) return false;
    place_revision_ = kvs[0].create_revision();
  }
  ring_ = std::move(ring);
  return true;
}

EtcdMembership::Impl::Step EtcdMembership::Impl::await_formed(Lock& lock, const Newest& newest,
                                                              int place, Time deadline) {
  const std::uint64_t number = newest.record.number;
  const auto is_taken = [&](int each) { return find(keys_.member(number, each)) != nullptr; };
  while (!lost_ && Clock::now() < deadline) {
    const Entry* record = find(keys_.generation());
    const Entry* own = find(keys_.member(number, place));
    if (record == nullptr || record->modified != newest.revision) return Step::Again;
    if (own == nullptr || own->created != place_revision_) {
      if (options_.worker < 0) avoided_.insert(place);
      return Step::Again;
    }
    if (const Entry* entry = find(keys_.formed(number))) {
      const std::optional<FormedRecord> formed = formed_record(entry->value);
      const auto index = static_cast<std::size_t>(place);
      if (!formed || formed->places.size() <= index ||
          formed->places[index].revision != place_revision_) {
        return Step::Again;
      }
      become_member(newest, place, *formed);
      return Step::Member;
    }
    bool complete = true;
    for (int each = 0; each < static_cast<int>(newest.record.places.size()); ++each) {
      complete = complete && is_taken(each);
    }
    if (complete) {
      write_formed(lock, newest, place, deadline);
      continue;
    }
    const std::int64_t seen = revision_;
    changed_.wait_until(lock, deadline, [&] { return revision_ != seen || lost_; });
  }
  return Step::Again;
}

void EtcdMembership::Impl::write_formed(Lock& lock, const Newest& newest, int place,
                                        Time deadline) {
  const std::uint64_t number = newest.record.number;
  FormedRecord formed{.places = {}, .ring_key = in_hex(make_nonce())};
  for (int each = 0; each < static_cast<int>(newest.record.places.size()); ++each) {
    const Entry& entry = *find(keys_.member(number, each));
    formed.places.push_back(
        {.member = member_record(entry.value).value_or(MemberRecord{}), .revision = entry.created});
  }
  etcdserverpb::TxnRequest request;
  *request.add_compare() = modified_in(keys_.generation(), newest.revision);
  *request.add_compare() = created_in(keys_.member(number, place), place_revision_);
  *request.add_compare() = created_in(keys_.formed(number), 0);
  *request.add_success() = put_key(keys_.formed(number), to_text(formed));
  *request.add_failure() = get_key(keys_.formed(number));
  *request.add_failure() = get_key(keys_.generation());
  transact(lock, request, deadline);
}

void EtcdMembership::Impl::become_member(const Newest& newest, int place,
                                         const FormedRecord& formed) {
  if (generation == 0) came_later = newest.record.previous != 0;
  generation = newest.record.number;
  record_ = newest.record;
  generation_revision_ = newest.revision;
  member_revision_ = place_revision_;
  worker = place;
  members.clear();
  HeartbeatRing::Start start{
      .worker = worker,
      .members = {},
      .key = options_.secret + formed.ring_key,
      .name = fmt::format("{}/{}", options_.job, generation),
      .lost = [this, number = generation](int other, FailureCause cause, const std::string& what) {
        const std::lock_guard lock(mutex_);
        if (number != generation) return;
        const std::string& name = members[static_cast<std::size_t>(other)].identity;
        queue_report({.generation = number,
                      .failure = {.rank = other,
                                  .kind = FailureKind::Comm,
                                  .message = fmt::format("worker {} ({}) {}", other, name, what)},
                      .cause = cause,
                      .unless_left = true});
      }};
  for (const FormedRecord::Place& each : formed.places) {
    members.push_back({.identity = each.member.identity, .address = each.member.address});
    start.members.push_back({.address = each.member.address, .port = each.member.port});
  }
  failure_.reset();
  caller_.reset();
  rejoining_ = false;
  reports_.clear();
  ring_->start(std::move(start));
  evaluate();
}

void EtcdMembership::Impl::fail_to_join(Time begin) const {
  const std::optional<Newest> now = newest();
  std::vector<std::string> missing;
  if (now && now->record.number > generation && !find(keys_.formed(now->record.number))) {
    for (int each = 0; each < static_cast<int>(now->record.places.size()); ++each) {
      if (!find(keys_.member(now->record.number, each))) {
        missing.push_back(fmt::format("worker {}", each));
      }
    }
  }
  if (!missing.empty()) {
    fail<CommError>(
        "[etcd] generation {} of job \"{}\" at {} is not complete after {}: {} missing; "
        "have all workers been started?",
        now->record.number, options_.job, client_.name(), shown(Clock::now() - begin),
        missing.size() == 1 ? missing[0] + " is" : fmt::format("{} are", fmt::join(missing, ", ")));
  }
  fail<CommError>(
      "[etcd] job \"{}\" at {} had no place for this worker within {}{}", options_.job,
      client_.name(), shown(Clock::now() - begin),
      now ? fmt::format(": its generation {} has begun, and its members live", now->record.number)
          : std::string());
}

}  // namespace lockstep
