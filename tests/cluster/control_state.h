// ControlStateOf: a control server's state, with a clock and workers of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/proof.h"

namespace lockstep {

using control::ToServer;
using control::ToWorker;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Id = ControlState::SessionId;

class ControlStateOf : public ::testing::Test {
 protected:
  void start(int workers) { state.emplace(options_of(workers)); }
  ControlStateOptions options_of(int workers) const {
    return {.workers = workers,
            .job = "job",
            .secret = "secret",
            .version = "1",
            .heartbeat_timeout = seconds(5),
            .join_timeout = seconds(100),
            .progress_timeout = seconds(60),
            .on_failure = on_failure};
  }

  void send(Id id, const ToServer& message) {
    state->receive(id, message.SerializeAsString(), now);
    collect();
  }
  void collect() {
    for (ControlState::Outgoing& each : state->take_outgoing()) {
      if (each.message.has_heartbeat()) {
        ++beats_answered;
      } else {
        inbox[each.session].push_back(each.message);
      }
      if (each.last) closed.push_back(each.session);
    }
  }
  ToWorker next(Id id) {
    auto& messages = inbox[id];
    if (messages.empty()) {
      ADD_FAILURE() << "session " << id << " has no message";
      return {};
    }
    ToWorker message = messages.front();
    messages.pop_front();
    return message;
  }

  Id connect() {
    const Id id = state->connect("peer", now);
    collect();
    return id;
  }
  Id join(int worker, const std::string& job = "job") {
    const Id id = connect();
    ToServer hello;
    hello.mutable_hello()->set_version("1");
    hello.mutable_hello()->set_job(job);
    hello.mutable_hello()->set_worker(worker);
    hello.mutable_hello()->set_nonce(std::string(kNonceBytes, 'a'));
    hello.mutable_hello()->set_identity("host:pid " + std::to_string(id));
    send(id, hello);
    ToServer proof;
    proof.mutable_proof()->set_proof(prove("secret", Prover::Worker,
                                           {.job = job,
                                            .worker = worker,
                                            .worker_nonce = std::string(kNonceBytes, 'a'),
                                            .server_nonce = next(id).challenge().nonce()}));
    send(id, proof);
    return id;
  }
  // Workers 0 to n-1, all members, in sessions `members`.
  void form(int n) {
    start(n);
    for (int i = 0; i < n; ++i) members.push_back(join(i));
    for (const Id id : members) {
      EXPECT_TRUE(next(id).has_welcome());
      EXPECT_EQ(next(id).members().members_size(), n);
    }
  }
  void beat(Id id, const std::string& activity = "", std::uint64_t step = 0, bool waiting = false) {
    ToServer message;
    message.mutable_heartbeat()->set_activity(activity);
    message.mutable_heartbeat()->set_step(step);
    message.mutable_heartbeat()->set_waiting(waiting);
    const int before = beats_answered;
    send(id, message);
    EXPECT_EQ(beats_answered, before + 1);
  }
  void tick(milliseconds later) {
    now += later;
    state->tick(now);
    collect();
  }
  // Time passes while these workers beat once a second.
  void pass(seconds time, const std::function<void()>& beats) {
    for (int i = 0; i < time.count(); ++i) {
      beats();
      tick(seconds(1));
    }
  }
  void rejoin(Id id, std::uint64_t generation) {
    ToServer message;
    message.mutable_rejoin()->set_id(9);
    message.mutable_rejoin()->set_generation(generation);
    message.mutable_rejoin()->set_timeout(30'000);
    send(id, message);
  }
  void barrier(Id id, const std::string& name) {
    ToServer message;
    message.mutable_barrier()->set_id(5);
    message.mutable_barrier()->set_generation(state->generation());
    message.mutable_barrier()->set_name(name);
    message.mutable_barrier()->set_timeout(3000);
    send(id, message);
  }

  OnFailure on_failure = OnFailure::Stop;
  std::optional<ControlState> state;
  ControlState::Time now{seconds(1000)};
  std::map<Id, std::deque<ToWorker>> inbox;
  std::vector<Id> closed;
  int beats_answered = 0;
  std::vector<Id> members;
};

}  // namespace lockstep
