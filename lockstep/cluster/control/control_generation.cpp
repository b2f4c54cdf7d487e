// Places, generations and failures.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {

std::string ControlState::name_of(const Session& session) const {
  const std::string identity = shown(session.hello.identity());
  if (session.worker < 0) return fmt::format("a worker ({})", identity);
  return fmt::format("worker {} ({})", session.worker, identity);
}

void ControlState::join(SessionId id, Session& session, Time now) {
  session.stage = Stage::Joined;
  session.worker = session.hello.worker();
  std::chrono::milliseconds limit = options_.join_timeout;
  if (session.hello.join_timeout() > 0) {
    limit = std::min(limit, timeout_of(session.hello.join_timeout()));
  }
  session.deadline = now + limit;
  const auto workers = static_cast<std::uint32_t>(places_.size());
  if (generation_ == 1 && !formed_ && session.hello.workers() != 0 &&
      session.hello.workers() != workers) {
    const int worker = std::exchange(session.worker, -1);
    return refuse(id, FailureKind::Usage,
                  fmt::format("worker {} expects {} workers, the server {}", worker,
                              session.hello.workers(), workers));
  }
  session.for_next = formed_;
  if (!over_.empty()) return refuse(id, FailureKind::Comm, over_);
  if (!take_place(id, session)) return;
  event(ControlEventKind::Joined, name_of(session) + " has joined", session.worker);
  try_form(now);
}

// Gives the session the place that it asks for; refuses it where that is impossible.
bool ControlState::take_place(SessionId id, Session& session) {
  if (session.worker < 0) return true;
  const auto index = static_cast<std::size_t>(session.worker);
  if (session.for_next) {
    // A running generation keeps its workers; what comes after it is open.
    const SessionId other = index < places_.size() && !failure_ ? places_[index].session : 0;
    if (other != 0) refuse_twice(id, session, other);
    return other == 0;
  }
  if (index >= places_.size()) {
    const int worker = std::exchange(session.worker, -1);
    refuse(id, FailureKind::Usage,
           fmt::format("there is no worker {}: the numbers of {} workers end at {}", worker,
                       places_.size(), places_.size() - 1));
    return false;
  }
  const SessionId other = places_[index].session;
  if (other != 0 && other != id) {
    if (!sessions_.at(other).silent) {
      refuse_twice(id, session, other);
      return false;
    }
    refuse(other, FailureKind::Comm, name_of(session) + " took the place of this silent worker");
  }
  places_[index] = {
      .session = id, .name = name_of(session), .note = {}, .seat = session.hello.worker()};
  return true;
}

// Two workers with one number: both hear of it, unless one of them is a member already.
void ControlState::refuse_twice(SessionId id, const Session& session, SessionId other) {
  const Session& first = sessions_.at(other);
  const std::string why =
      fmt::format("two workers have the number {}: {} and {}; give each its own", session.worker,
                  shown(first.hello.identity()), shown(session.hello.identity()));
  const auto index = static_cast<std::size_t>(session.worker);
  const bool both = first.generation == 0;
  refuse(id, FailureKind::Usage, why);
  if (!both) return;
  refuse(other, FailureKind::Usage, why);
  places_[index].note = why;
}

void ControlState::try_form(Time now) {
  if (formed_) return;
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const SessionId id = places_[i].session;
    if (id == 0) {
      open.push_back(i);
    } else if (sessions_.at(id).stage != Stage::Joined) {
      return;
    }
  }
  std::vector<SessionId> any;
  for (const auto& [id, session] : sessions_) {
    if (session.stage == Stage::Joined && session.worker < 0) any.push_back(id);
  }
  if (any.size() < open.size()) return;
  for (std::size_t i = 0; i < open.size(); ++i) {
    Session& session = sessions_.at(any[i]);
    session.worker = static_cast<int>(open[i]);
    places_[open[i]] = {
        .session = any[i], .name = name_of(session), .note = {}, .seat = session.worker};
  }
  formed_ = true;
  control::Members members;
  members.set_generation(generation_);
  for (const Place& place : places_) {
    const Session& session = sessions_.at(place.session);
    control::Member& member = *members.add_members();
    member.set_identity(session.hello.identity());
    member.set_address(session.hello.address());
  }
  for (const Place& place : places_) {
    Session& session = sessions_.at(place.session);
    session.stage = Stage::Member;
    session.generation = generation_;
    session.step = 0;
    session.waiting = false;
    session.moved = now;
    members.set_worker(static_cast<std::uint32_t>(session.worker));
    *send(place.session).mutable_members() = members;
    const std::uint64_t call = std::exchange(session.rejoin, 0);
    if (call != 0) reply(place.session, call, {});
  }
  for (std::size_t i = open.size(); i < any.size(); ++i) sessions_.at(any[i]).for_next = true;
  event(ControlEventKind::Formed,
        fmt::format("generation {} has {} workers", generation_, places_.size()));
}

void ControlState::lose(SessionId id, const std::string& note) {
  const auto found = sessions_.find(id);
  const Session& session = found->second;
  const bool current = is_current(session);
  const std::string text = name_of(session) + " " + note;
  const int worker = session.worker;
  std::string activity;
  bool had_place = false;
  for (Place& place : places_) {
    if (place.session != id) continue;
    activity = activity_text(place);
    place.session = 0;
    place.note = text;
    had_place = true;
  }
  end_waits_of(id);
  sessions_.erase(found);
  if (current) {
    fail({.rank = worker, .kind = FailureKind::Comm, .message = text + activity},
         FailureCause::Ended);
    return;
  }
  const bool goes_on = had_place && !formed_ && generation_ > 1 && over_.empty() &&
                       options_.on_failure != OnFailure::Stop;
  event(ControlEventKind::Lost, text, worker, FailureCause::None, goes_on);
  lost_while_forming(had_place);
}

void ControlState::fail(const Failure& failure, FailureCause cause) {
  if (!formed_ || failure_) return;
  end_generation(failure, cause, may_go_on(failure));
}

void ControlState::end_generation(const Failure& failure, FailureCause cause, bool goes_on) {
  failure_ = failure;
  next_is_due_ = goes_on && failure.rank >= 0;
  event(ControlEventKind::Failed, failure.message, failure.rank, cause, goes_on);
  for (const auto& [id, session] : sessions_) {
    if (!is_current(session)) continue;
    control::FailureNotice& notice = *send(id).mutable_failure();
    notice.set_generation(generation_);
    notice.set_worker(failure.rank);
    notice.set_kind(static_cast<std::uint32_t>(failure.kind));
    notice.set_message(failure.message);
    notice.set_goes_on(goes_on);
  }
  end_waits(failure.message);
}

void ControlState::rejoin(SessionId id, Session& session, const control::Rejoin& request,
                          Time now) {
  if (session.stage != Stage::Member || session.rejoin != 0 ||
      request.generation() != session.generation) {
    return reply_error(
        id, request.id(),
        fmt::format("[rejoin] {} asks for the generation after {}, but is {} "
                    "generation {}",
                    name_of(session), request.generation(),
                    session.rejoin != 0 ? "already waiting for the one after" : "a member of",
                    session.generation));
  }
  if (!over_.empty()) return reply_error(id, request.id(), "[rejoin] " + over_);
  session.rejoin = request.id();
  session.deadline = now + timeout_of(request.timeout());
  if (session.generation < generation_) {
    session.stage = Stage::Joined;
    try_form(now);
  }
}

void ControlState::begin_generation(const std::vector<int>& members, Time now) {
  require(!members.empty(), "[new_generation] it needs at least 1 member");
  std::map<int, int> place_of;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == -1) continue;
    require(members[i] >= 0 && members[i] < static_cast<int>(places_.size()),
            "[new_generation] there is no worker {} among the {} of generation {}", members[i],
            places_.size(), generation_);
    require(place_of.emplace(members[i], static_cast<int>(i)).second,
            "[new_generation] worker {} is named twice", members[i]);
  }
  if (formed_ && !failure_) {
    end_generation({.rank = -1,
                    .kind = FailureKind::Comm,
                    .message = fmt::format("generation {} has ended: the job goes on as generation "
                                           "{}",
                                           generation_, generation_ + 1)},
                   FailureCause::None, /*goes_on=*/true);
  }
  next_is_due_ = false;
  over_.clear();
  ++generation_;
  formed_ = false;
  failure_.reset();
  values_.clear();
  stored_ = 0;
  const std::vector<Place> old = std::exchange(places_, std::vector<Place>(members.size()));
  for (std::size_t i = 0; i < members.size() && i < old.size(); ++i) {
    if (members[i] == -1) places_[i].note = old[i].note;
  }
  for (const auto& [from, to] : place_of) {
    places_[static_cast<std::size_t>(to)].note = old[static_cast<std::size_t>(from)].note;
  }
  std::vector<SessionId> removed;
  std::vector<SessionId> newcomers;
  for (auto& [id, session] : sessions_) {
    if (session.stage != Stage::Member && session.stage != Stage::Joined) continue;
    if (session.for_next || session.worker < 0) {
      session.for_next = false;
      newcomers.push_back(id);
      continue;
    }
    const auto place = place_of.find(session.worker);
    if (place == place_of.end()) {
      removed.push_back(id);
      continue;
    }
    session.worker = place->second;
    places_[static_cast<std::size_t>(session.worker)] = {
        .session = id, .name = name_of(session), .note = {}, .seat = session.hello.worker()};
    if (session.rejoin != 0) session.stage = Stage::Joined;
  }
  for (const SessionId id : removed) {
    const int worker = std::exchange(sessions_.at(id).worker, -1);
    refuse(id, FailureKind::Comm,
           fmt::format("worker {} of generation {} is no member of generation {}", worker,
                       generation_ - 1, generation_));
  }
  for (const SessionId id : newcomers) {
    const auto found = sessions_.find(id);
    if (found != sessions_.end()) take_place(id, found->second);
  }
  try_form(now);
}

std::string ControlState::missing_places() const {
  std::string text;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    std::string missing;
    if (place.session == 0) {
      missing = fmt::format("worker {}", i);
      if (!place.note.empty()) missing += " (" + place.note + ")";
    } else if (sessions_.at(place.session).stage != Stage::Joined) {
      missing = place.name + " has not called rejoin()" + activity_text(place);
    }
    if (!missing.empty()) text += (text.empty() ? "" : ", ") + missing;
  }
  return text;
}

}  // namespace lockstep
