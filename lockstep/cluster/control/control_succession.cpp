// What comes after a failure: by the job's policy, the next generation, or nothing.
#include <algorithm>
#include <utility>

#include "lockstep/cluster/control/control_state.h"

namespace lockstep {

bool ControlState::may_go_on(const Failure& failure) {
  for (const auto& [id, session] : sessions_) {
    if (!is_current(session) || session.step <= furthest_) continue;
    furthest_ = session.step;
    failures_without_step_ = 0;
  }
  // A program that is wrong stays wrong.
  if (failure.rank < 0 || failure.kind == FailureKind::Usage) return false;
  if (options_.on_failure == OnFailure::Stop || ++failures_without_step_ > kMostTries) return false;
  // A worker that has left has done its part: nobody would take its place again.
  const auto left = [](const Place& place) { return place.left; };
  if (options_.on_failure == OnFailure::Restart) return std::ranges::none_of(places_, left);
  const auto others = [&](const Place& place) {
    return place.session != 0 && &place != &places_[static_cast<std::size_t>(failure.rank)];
  };
  return std::ranges::any_of(places_, others);
}

// With Restart, the place waits for a newcomer; with Shrink, the rest is a generation of its own.
void ControlState::lost_while_forming(bool had_place) {
  if (!had_place || formed_ || generation_ == 1) return;
  next_is_due_ = next_is_due_ || options_.on_failure == OnFailure::Shrink;
}

// A member that leaves instead of rejoining has ended its part of the job, which is then over for
// those who wait for it, and for those who come in place of others.
void ControlState::left_while_forming(const std::string& who) {
  if (formed_ || generation_ == 1) return;
  if (options_.on_failure == OnFailure::Shrink) {
    next_is_due_ = true;
    return;
  }
  over_ = who + ": the job is over";
  std::vector<SessionId> waiting;
  for (const auto& [id, session] : sessions_) {
    if (session.stage == Stage::Joined) waiting.push_back(id);
  }
  for (const SessionId id : waiting) refuse(id, FailureKind::Comm, over_);
}

// By place: the worker of the present generation that takes it, or -1 for a newcomer.
std::vector<int> ControlState::successors() const {
  std::vector<int> members;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const bool failed = failure_ && failure_->rank == static_cast<int>(i);
    const bool here = places_[i].session != 0 && !failed;
    if (here) {
      members.push_back(static_cast<int>(i));
    } else if (options_.on_failure == OnFailure::Restart) {
      members.push_back(-1);
    }
  }
  return members;
}

std::size_t ControlState::newcomers() const {
  return static_cast<std::size_t>(std::ranges::count_if(sessions_, [](const auto& each) {
    return each.second.stage == Stage::Joined && each.second.for_next;
  }));
}

void ControlState::admit(const Session& session, const control::Admit& request, Time now) {
  if (!is_current(session) || request.generation() != generation_ || session.worker != 0) return;
  if (failure_ || newcomers() == 0 || options_.on_failure == OnFailure::Stop) return;
  std::vector<int> members;
  for (std::size_t i = 0; i < places_.size(); ++i) members.push_back(static_cast<int>(i));
  members.resize(members.size() + newcomers(), -1);
  begin_generation(members, now);
}

void ControlState::advance(Time now) {
  while (std::exchange(next_is_due_, false)) {
    const std::vector<int> members = successors();
    if (members.empty()) return;
    begin_generation(members, now);
  }
}

}  // namespace lockstep
