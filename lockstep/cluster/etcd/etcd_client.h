// EtcdClient: calls to an etcd of one or several members. A call that a member does not answer goes
// to the next one; every call has a deadline on the monotonic clock, and ends early with stop().
//
// A call that got no answer may have been carried out, and is then sent again: callers use
// transactions that may happen twice, or look afterwards whose value is stored.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lockstep/cluster/control/control_server.h"
#include "lockstep/cluster/etcd/etcd.pb.h"

namespace lockstep {

struct EtcdClientOptions {
  std::vector<std::string> endpoints = {};
  TlsFiles tls = {};
  // How long one member may take before the next one is asked.
  std::chrono::milliseconds attempt_timeout{2000};
};

class EtcdClient {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  explicit EtcdClient(EtcdClientOptions options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // These throw CommError at the deadline, after stop(), and where etcd refuses.
  etcdserverpb::TxnResponse transact(const etcdserverpb::TxnRequest& request, Time deadline);
  // All keys that begin with the prefix.
  etcdserverpb::RangeResponse range(const std::string& prefix, Time deadline);
  struct Granted {
    std::int64_t id = 0;
    std::chrono::seconds ttl{0};
    Time sent{};  // the lease cannot end before sent + ttl
  };
  Granted grant(std::chrono::seconds ttl, Time deadline);
  void revoke(std::int64_t lease, Time deadline);

  // One attempt to renew a lease; where it fails, the next one goes to another member.
  struct Renewal {
    bool answered = false;
    std::chrono::seconds ttl{0};  // 0: the lease has ended
    std::string error = {};
  };
  Renewal renew(std::int64_t lease, Time deadline);

  // Calls `f` for all that happens to keys with this prefix after the revision, until the
  // connection ends, the member stops answering other calls, or stop(). Returns why.
  std::string watch(const std::string& prefix, std::int64_t after,
                    const std::function<void(const etcdserverpb::WatchResponse&)>& f);

  // Ends all calls, also later ones. From any thread.
  void stop();
  // "10.0.0.1:2379,10.0.0.2:2379"
  std::string name() const;

 private:
  struct Member;
  class Attempt;
  std::size_t current();
  bool is_stopped();
  // The next attempts go to another member than this one.
  void move_on(std::size_t index);
  grpc::Status connect(Member& member, Time deadline);
  template <class Call>
  void call(const char* what, Time deadline, Call&& attempt);

  const EtcdClientOptions options_;
  std::vector<std::unique_ptr<Member>> members_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Attempt*> attempts_;
  std::size_t current_ = 0;
  bool stopped_ = false;
};

// The pieces of transactions.
// Holds if the key was created in this revision; 0: if it does not exist.
etcdserverpb::Compare created_in(const std::string& key, std::int64_t revision);
// Holds if no key begins with this prefix.
etcdserverpb::Compare none_with(const std::string& prefix);
etcdserverpb::Compare modified_in(const std::string& key, std::int64_t revision);
etcdserverpb::RequestOp put_key(const std::string& key, std::string value, std::int64_t lease = 0);
etcdserverpb::RequestOp get_key(const std::string& key);
etcdserverpb::RequestOp delete_keys(const std::string& begin, const std::string& end);
// The first key that is after all keys with this prefix.
std::string end_of_prefix(std::string prefix);

}  // namespace lockstep
