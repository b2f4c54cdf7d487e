// What the clock shows: silent workers, deadlines that have passed, workers without progress.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/text.h"
#include "lockstep/cluster/control/waiting_circle.h"

namespace lockstep {
namespace {

// During these, others may wait for as long as it takes.
bool may_take_long(const std::string& activity) {
  constexpr std::array<std::string_view, 3> kLong = {"planning", "validating", "saving"};
  return std::any_of(kLong.begin(), kLong.end(),
                     [&](std::string_view each) { return activity.starts_with(each); });
}

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

// Names the workers that others wait for if, for longer than the limit, all of them have neither
// made progress nor waited themselves.
void ControlState::watch_progress(Time now) {
  if (!formed_ || failure_) return;
  std::string stuck;
  std::string waiting;
  int first = -1;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    const auto name = [&](std::string& list, const std::string& text) {
      list += (list.empty() ? "" : ", ") + text;
    };
    if (place.session == 0) {
      name(stuck, place.note);
      if (first < 0) first = static_cast<int>(i);
      continue;
    }
    const Session& session = sessions_.at(place.session);
    const auto still = now - session.moved;
    if (still <= options_.progress_timeout) return;
    if (session.waiting) {
      name(waiting, fmt::format("worker {}", i));
    } else if (may_take_long(session.activity)) {
      return;
    } else {
      name(stuck, fmt::format("{} has made no progress after step {} for {}{}", place.name,
                              session.step, shown(still), activity_text(place)));
      if (first < 0) first = static_cast<int>(i);
    }
  }
  if (stuck.empty()) return name_standstill(now);
  if (waiting.empty()) return;
  fail({.rank = first,
        .kind = FailureKind::Comm,
        .message = fmt::format("{}; waiting for it: {}", stuck, waiting)},
       FailureCause::Stuck);
}

// All wait for one another and nothing has come from anybody for longer than the limit, although
// all of them reach this server: a link between workers is down.
void ControlState::name_standstill(Time now) {
  std::vector<int> waits_for;
  Time moved{};  // the last one
  for (const Place& place : places_) {
    const Session& session = sessions_.at(place.session);
    waits_for.push_back(session.waiting_for);
    moved = std::max(moved, session.moved);
  }
  const std::vector<int> circle = find_waiting_circle(waits_for);
  if (circle.empty()) return;
  const auto address = [&](int worker) {
    const Place& place = places_[static_cast<std::size_t>(worker)];
    return shown(sessions_.at(place.session).hello.address());
  };
  std::string text;
  for (const int worker : circle) {
    text += fmt::format("{} waits for worker {}, ", places_[static_cast<std::size_t>(worker)].name,
                        waits_for[static_cast<std::size_t>(worker)]);
  }
  const int other = waits_for[static_cast<std::size_t>(circle.front())];
  fail({.rank = circle.front(),
        .kind = FailureKind::Comm,
        .message = fmt::format(
            "{}and nothing has come for {}, although all workers reach the control plane: look at "
            "the network and the firewalls between {} and {}",
            text, shown(now - moved), address(circle.front()), address(other))},
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
