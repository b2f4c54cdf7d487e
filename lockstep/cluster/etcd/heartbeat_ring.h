// HeartbeatRing: every worker is connected with the next one, and the last with the first. Both
// ends send heartbeats: who closes the connection without goodbye has ended, and who sends nothing
// for too long is silent. This tells of a death long before its lease ends.
//
// A connection counts only after both ends have proved (proof.h) that they know the key, which
// the members of this generation read in etcd, together with the job's secret.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/cluster/control/control_event.h"
#include "lockstep/cluster/control/proof.h"
#include "lockstep/comm/port_range.h"

namespace lockstep {

struct HeartbeatRingOptions {
  std::string host = "127.0.0.1";  // of the interface to listen at
  PortRange ports = {};            // the first free one of these
  std::chrono::milliseconds timeout{5000};
};

class HeartbeatRing {
 public:
  // Listens; who connects waits until start().
  explicit HeartbeatRing(HeartbeatRingOptions options);
  // Closes all connections.
  ~HeartbeatRing();
  HeartbeatRing(const HeartbeatRing&) = delete;
  HeartbeatRing& operator=(const HeartbeatRing&) = delete;

  int port() const { return port_; }

  struct Member {
    std::string address;  // in digits
    int port = 0;
  };
  struct Start {
    int worker = 0;
    std::vector<Member> members;
    std::string key;   // known to members only
    std::string name;  // of the job and generation
    // Called from the ring's thread, at most once for each end of this worker's connections: the
    // worker there, and what it did: "has ended", "has been silent for 5.0 s".
    std::function<void(int worker, FailureCause cause, const std::string& what)> lost;
  };
  void start(Start start);
  // From now on, the end of this object is no death: its neighbours are told.
  void say_goodbye();

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  struct Link;

  int listen_at(int port);
  void loop();
  void connect_next();
  void accept_one();
  void arrived(Link& link);
  void handshake(Link& link);
  void look_at_clock(Link& link, Time now);
  void send(Link& link, const std::string& bytes);
  void lose(Link& link, FailureCause cause, const std::string& what);
  ProofSubject subject(const Link& link) const;

  const HeartbeatRingOptions options_;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd
  int port_ = 0;
  Start start_;
  std::vector<std::unique_ptr<Link>> links_;
  std::atomic<bool> goodbye_ = false;
  std::thread thread_;
};

}  // namespace lockstep
