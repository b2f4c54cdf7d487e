// What the clock shows: silent workers, deadlines that have passed, workers without progress.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/standstill.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kMostWorkers = 1U << 20;

}  // namespace

void ControlState::heartbeat(SessionId id, Session& session, const control::Heartbeat& beat,
                             Time now) {
  const std::string activity = shown(beat.activity());
  if (beat.step() != session.step || beat.waiting() != session.waiting ||
      beat.messages() != session.messages || activity != session.activity) {
    session.moved = now;
  }
  session.step = beat.step();
  session.waiting = beat.waiting();
  session.waiting_for = static_cast<int>(std::min(beat.waiting_for(), kMostWorkers)) - 1;
  session.messages = beat.messages();
  session.activity = activity;
  control::HeartbeatReply& reply = *send(id).mutable_heartbeat();
  reply.set_newcomers(static_cast<std::uint32_t>(newcomers()));
  reply.set_sent_ns(beat.sent_ns());
  reply.set_server_ns(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count());
}

void ControlState::tick(Time now) {
  allow_for_pause(now);
  watch_sessions(now);
  watch_waits(now);
  watch_progress(now);
  advance(now);
}

// Where this process itself stood still (it was stopped, or the machine slept), the workers were
// not silent: it did not listen.
void ControlState::allow_for_pause(Time now) {
  if (last_tick_ && now - *last_tick_ > options_.heartbeat_timeout / 2) {
    const auto pause = now - *last_tick_;
    for (auto& [id, session] : sessions_) {
      session.heard = std::min(session.heard + pause, now);
      session.moved = std::min(session.moved + pause, now);
    }
  }
  last_tick_ = now;
}

void ControlState::watch_sessions(Time now) {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  for (const SessionId id : ids) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    Session& session = found->second;
    const auto silence = now - session.heard;
    if (session.stage == Stage::Fresh || session.stage == Stage::Challenged) {
      if (now - session.since > options_.handshake_timeout) {
        refuse(id, FailureKind::Comm,
               "the handshake was not complete after " + shown(now - session.since));
      }
      continue;
    }
    if (silence > options_.heartbeat_timeout && !session.silent) {
      session.silent = true;
      const std::string text = "has been silent for " + shown(silence);
      if (session.stage == Stage::Joined) {
        refuse(id, FailureKind::Comm, name_of(session) + " " + text);
        continue;
      }
      if (is_current(session)) {
        const Place& place = places_[static_cast<std::size_t>(session.worker)];
        fail({.rank = session.worker,
              .kind = FailureKind::Comm,
              .message = name_of(session) + " " + text + activity_text(place)},
             FailureCause::Silent);
      }
    }
    const bool waits = session.stage == Stage::Joined || session.rejoin != 0;
    if (!waits || now <= session.deadline) continue;
    const std::string text =
        formed_ ? fmt::format("generation {} was not begun in time", generation_ + 1)
                : fmt::format("generation {} of {} workers was not complete in time; missing: {}",
                              generation_, places_.size(), missing_places());
    if (session.generation == 0) {
      refuse(id, FailureKind::Comm, text);
    } else {
      reply_error(id, session.rejoin, "[rejoin] " + text);
      session.rejoin = 0;
      session.stage = Stage::Member;
    }
  }
}

void ControlState::watch_waits(Time now) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const bool over = now > wait->deadline;
    if (over) reply_error(wait->session, wait->id, timeout_text(*wait));
    wait = over ? waits_.erase(wait) : std::next(wait);
  }
}

void ControlState::watch_progress(Time now) {
  if (!formed_ || failure_) return;
  std::vector<Standing> workers;
  for (const Place& place : places_) {
    Standing& worker = workers.emplace_back();
    worker.name = place.name;
    if (place.session == 0) {
      worker.gone = place.note;
      continue;
    }
    const Session& session = sessions_.at(place.session);
    worker.address = shown(session.hello.address());
    worker.progress = {.step = session.step,
                       .waiting = session.waiting,
                       .waiting_for = session.waiting_for,
                       .messages = session.messages,
                       .activity = session.activity};
    worker.doing = activity_text(place);
    worker.still = now - session.moved;
  }
  const std::optional<Standstill> found =
      find_standstill(workers, options_.progress_timeout, "the control plane");
  if (!found) return;
  fail({.rank = found->worker, .kind = FailureKind::Comm, .message = found->message},
       FailureCause::Stuck);
}

std::string ControlState::activity_text(const Place& place) const {
  const auto found = sessions_.find(place.session);
  if (found == sessions_.end()) return {};
  const std::string& activity = found->second.activity;
  std::string text = activity.empty() ? "" : fmt::format("; it was last in \"{}\"", activity);
  for (const Wait& wait : waits_) {
    if (wait.session != place.session) continue;
    text += fmt::format("; it waits {} \"{}\"", wait.barrier ? "in barrier" : "for key",
                        shown(wait.name));
  }
  return text;
}

}  // namespace lockstep
