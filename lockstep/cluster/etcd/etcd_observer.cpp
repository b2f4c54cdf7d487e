#include "lockstep/cluster/etcd/etcd_observer.h"

#include <fmt/format.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/cluster/etcd/etcd_client.h"
#include "lockstep/cluster/etcd/etcd_records.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kFirstAnswer(2);
constexpr std::chrono::seconds kAnswer(10);
constexpr std::chrono::milliseconds kObserverPause(100);

}  // namespace

class EtcdObserver::Impl {
 public:
  explicit Impl(EtcdObserverOptions options)
      : options_(std::move(options)),
        keys_(options_.job),
        client_({.endpoints = options_.endpoints, .tls = options_.tls}) {
    try {
      since_ =
          client_.range(keys_.root(), EtcdClient::Clock::now() + kFirstAnswer).header().revision();
    } catch (const CommError&) {
      // Later; the workers say what is wrong.
    }
    thread_ = std::thread([this] { loop(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stopped_.notify_all();
    client_.stop();
    thread_.join();
  }

 private:
  struct Entry {
    std::string value;
    std::int64_t created = 0;
  };

  void loop() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      try {
        const etcdserverpb::RangeResponse all =
            client_.range(keys_.root(), EtcdClient::Clock::now() + kAnswer);
        entries_.clear();
        for (const etcdserverpb::KeyValue& kv : all.kvs()) keep(kv);
        look();
        client_.watch(keys_.root(), all.header().revision(),
                      [this](const etcdserverpb::WatchResponse& response) { heard(response); });
      } catch (const Error&) {
        // Again.
      }
      lock.lock();
      stopped_.wait_for(lock, kObserverPause, [&] { return stopping_; });
    }
  }

  void heard(const etcdserverpb::WatchResponse& response) {
    for (const etcdserverpb::Event& event : response.events()) {
      if (event.type() == etcdserverpb::Event::PUT) {
        keep(event.kv());
      } else {
        entries_.erase(event.kv().key());
      }
    }
    look();
  }

  void keep(const etcdserverpb::KeyValue& kv) {
    entries_[kv.key()] = {.value = kv.value(), .created = kv.create_revision()};
  }

  // An entry that was made since the observer began.
  const Entry* find(const std::string& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() || found->second.created <= since_ ? nullptr : &found->second;
  }

  void look() {
    const auto found = entries_.find(keys_.generation());
    if (found == entries_.end()) return;
    const std::optional<GenerationRecord> newest = generation_record(found->second.value);
    if (!newest) return;
    // Whoever fails in the newest generation may have been a member of the one before, too.
    if (newest->previous != 0) look_at(newest->previous, nullptr);
    look_at(newest->number, &*newest);
  }

  // `record` of the newest generation; null for the one before, after which the job went on.
  void look_at(std::uint64_t number, const GenerationRecord* record) {
    const Entry* entry = find(keys_.formed(number));
    const std::optional<FormedRecord> formed =
        entry != nullptr ? formed_record(entry->value) : std::nullopt;
    if (!formed) return;
    const auto seat_of = [&](int worker) {
      return formed->places[static_cast<std::size_t>(worker)].member.seat;
    };
    for (int w = 0; w < std::ssize(formed->places); ++w) {
      tell(fmt::format("{} joined {}", number, w),
           {.kind = ControlEventKind::Joined, .worker = w, .seat = seat_of(w)});
      if (find(keys_.left(number, w)) == nullptr) continue;
      tell(fmt::format("{} left {}", number, w),
           {.kind = ControlEventKind::Left, .worker = w, .seat = seat_of(w)});
    }
    const Entry* failure = find(keys_.failure(number));
    const std::optional<FailureRecord> failed =
        failure != nullptr ? failure_record(failure->value) : std::nullopt;
    if (!failed || failed->failure.rank < 0 || failed->failure.rank >= std::ssize(formed->places)) {
      return;
    }
    const OnFailure policy = options_.on_failure;
    const bool may = may_go_on(policy, failed->failure, 0);
    // The members count what they have tried, and by which step; then the next generation tells.
    const bool known = record == nullptr || !may || record->failures < kMostTries;
    if (!known) return;
    tell(fmt::format("{} failed", number), {.kind = ControlEventKind::Failed,
                                            .worker = failed->failure.rank,
                                            .seat = seat_of(failed->failure.rank),
                                            .text = failed->failure.message,
                                            .cause = failed->cause,
                                            .goes_on = may});
  }

  void tell(const std::string& what, const ControlEvent& event) {
    if (told_.insert(what).second && options_.on_event) options_.on_event(event);
  }

  const EtcdObserverOptions options_;
  const EtcdKeys keys_;
  EtcdClient client_;
  std::int64_t since_ = 0;
  // Of the thread alone.
  std::map<std::string, Entry> entries_;
  std::set<std::string> told_;

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread thread_;
};

EtcdObserver::EtcdObserver(EtcdObserverOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
EtcdObserver::~EtcdObserver() = default;

}  // namespace lockstep
