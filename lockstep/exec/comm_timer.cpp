#include "lockstep/exec/comm_timer.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kEnd = 0;  // the timestamp of a step's end

}  // namespace

CommTimer::CommTimer(Device& device, std::size_t most, Track& track)
    : memory_(device.allocate_host(kTurns * (2 * most + 1) * sizeof(std::int64_t))),
      of_turn_(2 * most + 1),
      track_(track) {}

void CommTimer::begin(std::size_t turn) {
  turn_ = turn;
  used_ = kEnd + 1;
  turns_[turn].clear();
}

void CommTimer::end(Stream& compute) {
  used_ = kEnd;
  compute.stamp(next_stamp());
}

std::int64_t* CommTimer::next_stamp() {
  ensure(used_ < of_turn_, "a step has more than {} sums and waits", of_turn_ / 2);
  return reinterpret_cast<std::int64_t*>(memory_->data()) + turn_ * of_turn_ + used_++;
}

std::int64_t CommTimer::account(std::size_t turn, std::int64_t end_ns) {
  const auto* const stamps =
      reinterpret_cast<const std::int64_t*>(memory_->data()) + turn * of_turn_;
  const auto when = [&](std::size_t stamp) { return end_ns - (stamps[kEnd] - stamps[stamp]); };
  struct Times {
    std::int64_t begin;
    std::int64_t end;
  };
  std::int64_t exposed = 0;
  std::vector<Times> sums;  // one after another: they are on one stream
  std::vector<Times> waits;
  for (const Interval& interval : turns_[turn]) {
    const Times times{when(interval.stamp), when(interval.stamp + 1)};
    if (interval.kind == Kind::Wait) {
      waits.push_back(times);
      continue;
    }
    track_.add(interval.name, SpanKind::Communication, times.begin, times.end);
    if (interval.kind == Kind::ExposedCollective) exposed += times.end - times.begin;
    if (interval.kind == Kind::Collective) sums.push_back(times);
  }
  for (const Times& wait : waits) {
    for (const Times& sum : sums) {
      exposed +=
          std::max<std::int64_t>(0, std::min(wait.end, sum.end) - std::max(wait.begin, sum.begin));
    }
  }
  return exposed;
}

}  // namespace lockstep
