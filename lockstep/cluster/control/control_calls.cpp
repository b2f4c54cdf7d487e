// The store, barriers and reports of workers.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

// Calls of one worker that may wait at a time.
constexpr std::ptrdiff_t kMaxWaits = 1024;

}  // namespace

void ControlState::reply(SessionId id, std::uint64_t call, const std::string& value) {
  control::Reply& reply = *send(id).mutable_reply();
  reply.set_id(call);
  reply.set_ok(true);
  reply.set_text(value);
}

void ControlState::reply_error(SessionId id, std::uint64_t call, const std::string& why,
                               FailureKind kind) {
  control::Reply& reply = *send(id).mutable_reply();
  reply.set_id(call);
  reply.set_text(why);
  reply.set_kind(static_cast<std::uint32_t>(kind));
}

// Whether the call may go on; otherwise it has been answered.
bool ControlState::check_call(SessionId id, const Session& session, std::uint64_t call,
                              std::uint64_t generation, const std::string& what,
                              bool after_failure) {
  if (generation != generation_ || !is_current(session)) {
    reply_error(id, call,
                fmt::format("{} belongs to generation {}, but the job is in generation {}: call "
                            "rejoin()",
                            what, generation, generation_));
    return false;
  }
  if (failure_ && !after_failure) {
    reply_error(id, call, what + ": " + failure_->message);
    return false;
  }
  if (what.size() > kMaxControlName) {
    reply_error(id, call,
                fmt::format("{}: the name has more than {} bytes", shown(what), kMaxControlName),
                FailureKind::Usage);
    return false;
  }
  const auto of_session = [&](const Wait& wait) { return wait.session == id; };
  if (std::count_if(waits_.begin(), waits_.end(), of_session) >= kMaxWaits) {
    reply_error(id, call,
                fmt::format("{}: {} other calls of this worker wait already", what, kMaxWaits));
    return false;
  }
  return true;
}

void ControlState::set(SessionId id, const Session& session, const control::Set& request) {
  const std::string& key = request.key();
  const std::string what = fmt::format("[store] key \"{}\"", key);
  const bool commits = key.starts_with(kCommitPrefix);
  if (!check_call(id, session, request.id(), request.generation(), what, commits)) return;
  const auto present = values_.find(key);
  const std::size_t before = present == values_.end() ? 0 : present->second.size();
  const std::size_t after = stored_ - before + request.value().size();
  if (request.value().size() > kMaxStoreValue || after > kMaxStoreBytes) {
    return reply_error(id, request.id(),
                       fmt::format("{}: a value of {} bytes is too large: one may have {}, all "
                                   "together {}",
                                   what, request.value().size(), kMaxStoreValue, kMaxStoreBytes),
                       FailureKind::Usage);
  }
  if (present == values_.end() && values_.size() >= kMaxStoreKeys) {
    return reply_error(id, request.id(),
                       fmt::format("{}: there are {} keys already", what, kMaxStoreKeys),
                       FailureKind::Usage);
  }
  stored_ = after;
  values_[key] = request.value();
  reply(id, request.id(), {});
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const bool woken = !wait->barrier && wait->name == key;
    if (woken) reply(wait->session, wait->id, request.value());
    wait = woken ? waits_.erase(wait) : std::next(wait);
  }
}

void ControlState::get(SessionId id, const Session& session, const control::Get& request,
                       Time now) {
  const std::string what = fmt::format("[store] key \"{}\"", request.key());
  if (!check_call(id, session, request.id(), request.generation(), what)) return;
  const auto found = values_.find(request.key());
  if (found != values_.end()) return reply(id, request.id(), found->second);
  const std::chrono::milliseconds timeout = timeout_of(request.timeout());
  waits_.push_back({.session = id,
                    .id = request.id(),
                    .barrier = false,
                    .name = request.key(),
                    .deadline = now + timeout,
                    .timeout = timeout});
}

bool ControlState::arrived(const std::string& barrier, SessionId session) const {
  return std::any_of(waits_.begin(), waits_.end(), [&](const Wait& wait) {
    return wait.barrier && wait.session == session && wait.name == barrier;
  });
}

void ControlState::barrier(SessionId id, const Session& session, const control::Barrier& request,
                           Time now) {
  const std::string& name = request.name();
  const std::string what = fmt::format("[barrier] \"{}\"", name);
  if (!check_call(id, session, request.id(), request.generation(), what)) return;
  for (const Place& place : places_) {
    if (place.left) return reply_error(id, request.id(), what + ": " + place.note);
  }
  if (arrived(name, id)) {
    return reply_error(id, request.id(), what + ": this worker is already waiting in it",
                       FailureKind::Usage);
  }
  const std::chrono::milliseconds timeout = timeout_of(request.timeout());
  waits_.push_back({.session = id,
                    .id = request.id(),
                    .barrier = true,
                    .name = name,
                    .deadline = now + timeout,
                    .timeout = timeout});
  finish_barrier(name);
}

void ControlState::finish_barrier(const std::string& name) {
  for (const Place& place : places_) {
    if (!arrived(name, place.session)) return;
  }
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const bool done = wait->barrier && wait->name == name;
    if (done) reply(wait->session, wait->id, {});
    wait = done ? waits_.erase(wait) : std::next(wait);
  }
}

std::string ControlState::timeout_text(const Wait& wait) const {
  if (!wait.barrier) {
    return fmt::format("[store] key \"{}\" was not set within {}", shown(wait.name),
                       shown(wait.timeout));
  }
  std::string missing;
  int count = 0;
  for (const Place& place : places_) {
    if (arrived(wait.name, place.session)) continue;
    ++count;
    missing += (missing.empty() ? "" : ", ") + place.name + activity_text(place);
  }
  return fmt::format("[barrier] \"{}\": after {}, {} of {} workers are missing: {}",
                     shown(wait.name), shown(wait.timeout), count, places_.size(), missing);
}

void ControlState::report(const Session& session, const control::Report& request) {
  if (!is_current(session) || request.generation() != generation_) return;
  fail({.rank = session.worker,
        .kind = failure_kind_of(request.kind()),
        .message = request.message().substr(0, kMaxStoreValue)},
       FailureCause::Reported);
}

void ControlState::end_waits(const std::string& why) {
  for (const Wait& wait : std::exchange(waits_, {})) {
    reply_error(
        wait.session, wait.id,
        fmt::format("[{}] \"{}\": {}", wait.barrier ? "barrier" : "store", shown(wait.name), why));
  }
}

void ControlState::end_barriers(const std::string& why) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    if (wait->barrier) {
      reply_error(wait->session, wait->id,
                  fmt::format("[barrier] \"{}\": {}", shown(wait->name), why));
    }
    wait = wait->barrier ? waits_.erase(wait) : std::next(wait);
  }
}

void ControlState::end_waits_of(SessionId id) {
  waits_.remove_if([&](const Wait& wait) { return wait.session == id; });
}

}  // namespace lockstep
