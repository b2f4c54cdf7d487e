// The heartbeats of a ControlClient, sent by a thread of their own.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cluster/control/client_impl.h"
#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kSoonestBeat(50);

std::int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

void ControlClient::Impl::beat_loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto at_rest = [&] { return !welcome_ || over_ || left_; };
    if (at_rest()) {
      changed_.wait(lock, [&] { return stopping_ || !at_rest(); });
      heard_ = last_beat_ = Clock::now();
      continue;
    }
    const Time before = Clock::now();
    const Time due = next_beat_;
    if (due > before) {
      changed_.wait_until(lock, due, [&] { return stopping_ || at_rest() || next_beat_ < due; });
    }
    const Time now = Clock::now();
    // Where this process itself stood still, the server was not silent: nobody listened to it.
    if (now - before > heartbeat_timeout_ / 2) heard_ = std::min(now, heard_ + (now - before));
    if (stopping_ || at_rest()) continue;
    if (now - heard_ > heartbeat_timeout_) {
      end_connection("it has not answered for " + shown(now - heard_));
      stream_->cancel();
    } else if (now >= next_beat_) {
      beat(now);
    }
  }
}

void ControlClient::Impl::beat(Time now) {
  if (ask_) {
    WorkerProgress progress = ask_();
    step_ = progress.step;
    waiting_ = progress.waiting;
    waiting_for_ = progress.waiting_for;
    messages_ = progress.messages;
    activity_ = progress.activity.substr(0, kMaxControlName);
  }
  control::ToServer message;
  control::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_sent_ns(nanoseconds_of(now));
  heartbeat.set_activity(activity_);
  heartbeat.set_step(step_);
  heartbeat.set_waiting(waiting_);
  heartbeat.set_waiting_for(static_cast<std::uint32_t>(waiting_for_ + 1));
  heartbeat.set_messages(messages_);
  stream_->send(std::move(message));
  last_beat_ = now;
  next_beat_ =
      now + std::clamp<Clock::duration>(heartbeat_timeout_ / 10, std::chrono::milliseconds(5),
                                        std::chrono::seconds(1));
}

void ControlClient::Impl::note_clock(const control::HeartbeatReply& reply, Time now) {
  const std::chrono::nanoseconds sent(reply.sent_ns());
  const std::chrono::nanoseconds round_trip = std::chrono::nanoseconds(nanoseconds_of(now)) - sent;
  if (round_trip.count() <= 0) return;
  if (clock.round_trip.count() > 0 && round_trip >= clock.round_trip) return;
  clock = {.offset = std::chrono::nanoseconds(reply.server_ns()) - (sent + round_trip / 2),
           .round_trip = round_trip};
}

void ControlClient::Impl::announce(const std::string& activity) {
  const std::lock_guard lock(mutex_);
  activity_ = activity.substr(0, kMaxControlName);
  next_beat_ = std::min(next_beat_, last_beat_ + kSoonestBeat);
  changed_.notify_all();
}

void ControlClient::Impl::progress(std::uint64_t step, bool waiting) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  waiting_ = waiting;
}

void ControlClient::Impl::on_heartbeat(std::function<WorkerProgress()> f) {
  const std::lock_guard lock(mutex_);
  ask_ = std::move(f);
}

}  // namespace lockstep
