// Any bytes on any stream of a control server give answers or refusals; whoever has not proved the
// secret stays outside, and a worker that goes on is answered. The input is a list of messages: a
// byte for the stream and what happens, a byte for the length, and the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/proof.h"

namespace {

using lockstep::ControlState;
using lockstep::control::ToServer;

void expect(bool condition) {
  if (!condition) std::abort();
}

class Job {
 public:
  Job() : state_({.workers = 2, .job = "job", .secret = "secret", .version = "1"}) {
    for (int i = 0; i < 2; ++i) sessions_.push_back(join(i));
    sessions_.push_back(join(-1));  // waits for the next generation
    sessions_.push_back(state_.connect("stranger", now_));
    expect(state_.formed());
  }

  void apply(std::uint8_t what, const std::string& bytes) {
    now_ += std::chrono::milliseconds(what);
    const ControlState::SessionId id = sessions_[what % sessions_.size()];
    switch (what / 16) {
      case 0:
        state_.disconnect(id, now_);
        break;
      case 1:
        now_ += std::chrono::seconds(bytes.size());
        state_.tick(now_);
        break;
      case 2:
        begin(bytes);
        break;
      case 3:
        sessions_.push_back(join(bytes.empty() ? -1 : bytes.front() % 4));
        break;
      default:
        state_.receive(id, bytes, now_);
    }
    for (const ControlState::Outgoing& each : state_.take_outgoing()) {
      // The stranger does not know the secret.
      if (each.session == sessions_[3]) {
        expect(each.message.has_challenge() || each.message.has_refusal());
      }
    }
    state_.take_events();
  }

 private:
  void begin(const std::string& bytes) {
    std::vector<int> members;
    for (const char each : bytes) members.push_back(static_cast<signed char>(each) % 8);
    try {
      state_.begin_generation(members, now_);
    } catch (const lockstep::UsageError&) {
    }
  }

  ControlState::SessionId join(int worker) {
    const ControlState::SessionId id = state_.connect("worker", now_);
    const std::string nonce(lockstep::kNonceBytes, 'n');
    ToServer hello;
    hello.mutable_hello()->set_version("1");
    hello.mutable_hello()->set_job("job");
    hello.mutable_hello()->set_worker(worker);
    hello.mutable_hello()->set_nonce(nonce);
    state_.receive(id, hello.SerializeAsString(), now_);
    std::string challenge;
    for (const ControlState::Outgoing& each : state_.take_outgoing()) {
      if (each.session == id) challenge = each.message.challenge().nonce();
    }
    ToServer proof;
    proof.mutable_proof()->set_proof(lockstep::prove(
        "secret", lockstep::Prover::Worker,
        {.job = "job", .worker = worker, .worker_nonce = nonce, .server_nonce = challenge}));
    state_.receive(id, proof.SerializeAsString(), now_);
    return id;
  }

  ControlState state_;
  ControlState::Time now_{std::chrono::seconds(1000)};
  std::vector<ControlState::SessionId> sessions_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Job job;
  std::size_t at = 0;
  while (at + 2 <= size) {
    const std::uint8_t what = data[at];
    const std::size_t length = std::min<std::size_t>(data[at + 1], size - at - 2);
    job.apply(what, std::string(reinterpret_cast<const char*>(data + at + 2), length));
    at += 2 + length;
  }
  return 0;
}
