// Streams and the handshake.
#include "lockstep/cluster/control/control_state.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/proof.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

// Streams that have not proved the secret yet: more of them at a time are no workers.
constexpr std::size_t kMaxStrangers = 1024;

bool is_hello_sound(const control::Hello& hello) {
  return hello.nonce().size() == kNonceBytes && hello.worker() >= -1 &&
         hello.version().size() <= kMaxControlName && hello.job().size() <= kMaxControlName &&
         hello.identity().size() <= kMaxControlName && hello.address().size() <= kMaxControlName;
}

}  // namespace

ControlState::ControlState(ControlStateOptions options) : options_(std::move(options)) {
  require(options_.workers >= 1, "a job needs at least 1 worker, not {}", options_.workers);
  require(options_.heartbeat_timeout.count() > 0, "the heartbeat timeout must be positive");
  places_.resize(static_cast<std::size_t>(options_.workers));
}

ControlState::SessionId ControlState::connect(const std::string& peer, Time now) {
  const SessionId id = ++last_session_;
  Session& session = sessions_[id];
  session.peer = peer;
  session.since = session.heard = now;
  std::size_t strangers = 0;
  for (const auto& [other, each] : sessions_) {
    if (each.stage == Stage::Fresh || each.stage == Stage::Challenged) ++strangers;
  }
  if (strangers > kMaxStrangers) {
    refuse(id, FailureKind::Comm, "too many connections are in the middle of their handshake");
  }
  return id;
}

void ControlState::receive(SessionId id, std::string_view bytes, Time now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  control::ToServer message;
  if (bytes.size() > kMaxControlMessage ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    refuse(id, FailureKind::Comm,
           fmt::format("a message of {} bytes cannot be read", bytes.size()));
    return;
  }
  Session& session = found->second;
  session.heard = now;
  session.silent = false;
  dispatch(id, session, message, now);
  advance(now);
}

void ControlState::dispatch(SessionId id, Session& session, const control::ToServer& message,
                            Time now) {
  using Body = control::ToServer;
  const Body::BodyCase body = message.body_case();
  const bool expected = session.stage == Stage::Fresh        ? body == Body::kHello
                        : session.stage == Stage::Challenged ? body == Body::kProof
                        : session.generation == 0 ? body == Body::kHeartbeat || body == Body::kLeave
                                                  : body != Body::kHello && body != Body::kProof;
  if (!expected) {
    refuse(id, FailureKind::Comm,
           fmt::format("message {} was not expected here", static_cast<int>(body)));
    return;
  }
  switch (body) {
    case Body::kHello:
      return greet(id, session, message.hello());
    case Body::kProof:
      return check_proof(id, session, message.proof(), now);
    case Body::kHeartbeat:
      return heartbeat(id, session, message.heartbeat(), now);
    case Body::kSet:
      return set(id, session, message.set());
    case Body::kGet:
      return get(id, session, message.get(), now);
    case Body::kBarrier:
      return barrier(id, session, message.barrier(), now);
    case Body::kReport:
      return report(session, message.report());
    case Body::kRejoin:
      return rejoin(id, session, message.rejoin(), now);
    case Body::kLeave:
      return leave(id, session);
    case Body::kAdmit:
      return admit(session, message.admit(), now);
    case Body::BODY_NOT_SET:
      return refuse(id, FailureKind::Comm, "an empty message");
  }
}

void ControlState::greet(SessionId id, Session& session, const control::Hello& hello) {
  if (!is_hello_sound(hello)) {
    return refuse(id, FailureKind::Comm, "the greeting is malformed");
  }
  if (hello.version() != options_.version) {
    return refuse(id, FailureKind::Usage,
                  fmt::format("versions differ: the server has \"{}\", the worker \"{}\": install "
                              "the same version of Lockstep everywhere",
                              options_.version, shown(hello.version())));
  }
  session.hello = hello;
  session.nonce = make_nonce();
  session.stage = Stage::Challenged;
  send(id).mutable_challenge()->set_nonce(session.nonce);
}

void ControlState::check_proof(SessionId id, Session& session, const control::Proof& proof,
                               Time now) {
  const control::Hello& hello = session.hello;
  const ProofSubject subject{.job = hello.job(),
                             .worker = hello.worker(),
                             .worker_nonce = hello.nonce(),
                             .server_nonce = session.nonce};
  if (!is_proof(proof.proof(), options_.secret, Prover::Worker, subject)) {
    return refuse(id, FailureKind::Usage,
                  "the worker does not know this job's secret: give the server and all workers "
                  "the same one");
  }
  if (hello.job() != options_.job) {
    return refuse(id, FailureKind::Usage,
                  fmt::format("the worker belongs to job \"{}\", this is the server of job \"{}\"",
                              shown(hello.job()), options_.job));
  }
  control::Welcome& welcome = *send(id).mutable_welcome();
  welcome.set_proof(prove(options_.secret, Prover::Server, subject));
  welcome.set_on_failure(static_cast<std::uint32_t>(options_.on_failure));
  welcome.set_heartbeat_timeout(static_cast<std::uint64_t>(options_.heartbeat_timeout.count()));
  join(id, session, now);
}

void ControlState::leave(SessionId id, Session& session) {
  send(id, true).mutable_goodbye();
  const bool current = is_current(session);
  const std::string note = name_of(session) + " has left";
  bool had_place = false;
  event(ControlEventKind::Left, note, session.worker);
  end_waits_of(id);
  sessions_.erase(id);
  for (Place& place : places_) {
    if (place.session != id) continue;
    place.session = 0;
    place.note = note;
    place.left = current;
    had_place = true;
  }
  if (current) end_barriers(note);
  if (had_place) left_while_forming(note);
}

void ControlState::disconnect(SessionId id, Time now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const Session& session = found->second;
  if (session.stage == Stage::Fresh || session.stage == Stage::Challenged) {
    ++refused_;
    event(ControlEventKind::Refused,
          fmt::format("{}: the connection ended before its handshake", session.peer));
    sessions_.erase(found);
    return;
  }
  lose(id, "has ended");
  advance(now);
}

void ControlState::refuse(SessionId id, FailureKind kind, const std::string& why) {
  const Session& session = sessions_.at(id);
  ++refused_;
  event(ControlEventKind::Refused, fmt::format("{}: {}", session.peer, why), session.worker);
  control::Refusal& refusal = *send(id, true).mutable_refusal();
  refusal.set_kind(static_cast<std::uint32_t>(kind));
  refusal.set_message(why);
  if (session.stage == Stage::Fresh || session.stage == Stage::Challenged) {
    sessions_.erase(id);
  } else {
    lose(id, "was refused: " + why);
  }
}

control::ToWorker& ControlState::send(SessionId id, bool last) {
  outgoing_.push_back({.session = id, .message = {}, .last = last});
  return outgoing_.back().message;
}

void ControlState::event(ControlEventKind kind, std::string text, int worker, FailureCause cause,
                         bool goes_on) {
  events_.push_back({.kind = kind,
                     .worker = worker,
                     .seat = seat_of(worker),
                     .text = std::move(text),
                     .cause = cause,
                     .goes_on = goes_on});
}

int ControlState::seat_of(int worker) const {
  return worker >= 0 && worker < std::ssize(places_)
             ? places_[static_cast<std::size_t>(worker)].seat
             : -1;
}

std::vector<ControlState::Outgoing> ControlState::take_outgoing() {
  return std::exchange(outgoing_, {});
}

std::vector<ControlEvent> ControlState::take_events() {
  return std::exchange(events_, {});
}

}  // namespace lockstep
