#include "lockstep/explain/replay.h"

#include <algorithm>

namespace lockstep {
namespace {

// Finds, for an event that has to wait for several others, when it can begin and because of which.
struct Begin {
  double at = 0;
  int cause = -1;

  void after(const std::vector<TimelineEvent>& events, int event) {
    if (event < 0) return;
    const double end = events[static_cast<std::size_t>(event)].end;
    if (cause >= 0 && end <= at) return;
    if (cause < 0 && end < at) return;
    at = end;
    cause = event;
  }
  void not_before(double time) {
    if (time <= at) return;
    at = time;
    cause = -1;
  }
};

// What both kinds of replay share: the events so far, and the communication that slows computing.
class Timeline {
 public:
  Timeline(const MeasuredStep& step, const ReplayCosts& costs, double factor,
           const std::vector<double>& arrivals)
      : step_(step),
        costs_(costs),
        factor_(factor),
        arrivals_(arrivals),
        event_of_(step.instructions.size(), -1) {}

 protected:
  const MeasuredInstruction& instruction(int i) const {
    return step_.instructions[static_cast<std::size_t>(i)];
  }
  int count() const { return static_cast<int>(step_.instructions.size()); }
  int event_of(int i) const { return event_of_[static_cast<std::size_t>(i)]; }
  double end_of(int event) const { return events_[static_cast<std::size_t>(event)].end; }

  int add(int i, Lane lane, const Begin& begin, double end) {
    events_.push_back(
        {.instruction = i, .lane = lane, .begin = begin.at, .end = end, .cause = begin.cause});
    const int event = static_cast<int>(events_.size()) - 1;
    if (i >= 0) event_of_[static_cast<std::size_t>(i)] = event;
    return event;
  }

  void wait_for_all_replicas(int i, Begin& begin) const {
    if (!arrivals_.empty()) begin.not_before(arrivals_[static_cast<std::size_t>(i)]);
  }

  // Collectives begin one after another, so that the slowed stretches are in order.
  void slow_down(double begin, double end, double share) {
    if (share > 0 && end > begin) slowed_.push_back({begin, end, share});
  }

  // When `work` seconds of computation that begin at `begin` are over.
  double computed(double begin, double work) const {
    double at = begin;
    for (auto stretch = first_slowed(begin); stretch < slowed_.size() && work > 0; ++stretch) {
      const auto& [from, to, share] = slowed_[stretch];
      if (from > at) {
        const double before = std::min(work, from - at);
        work -= before;
        at += before;
        if (work <= 0) break;
      }
      const double speed = 1 - share;
      const double possible = (to - at) * speed;
      const double done = std::min(work, possible);
      work -= done;
      at = done < possible ? at + done / speed : to;
    }
    return at + work;
  }

  double compute_time(int i) const { return costs_.compute[static_cast<std::size_t>(i)] * factor_; }
  const CollectiveSeconds& collective(int i) const {
    return costs_.collective[static_cast<std::size_t>(i)];
  }
  double share(int i) const { return costs_.share[static_cast<std::size_t>(i)]; }

  Replay finish() {
    Begin begin;
    for (int e = 0; e < static_cast<int>(events_.size()); ++e) begin.after(events_, e);
    Replay result;
    if (costs_.host > 0) add(-1, Lane::Host, begin, begin.at + costs_.host);
    result.end = begin.at + costs_.host;
    result.events = std::move(events_);
    return result;
  }

  std::vector<TimelineEvent> events_;

 private:
  struct Slowed {
    double begin;
    double end;
    double share;
  };
  std::size_t first_slowed(double time) const {
    const auto found = std::ranges::lower_bound(slowed_, time, std::less_equal<>(), &Slowed::end);
    return static_cast<std::size_t>(found - slowed_.begin());
  }

  const MeasuredStep& step_;
  const ReplayCosts& costs_;
  double factor_;
  const std::vector<double>& arrivals_;
  std::vector<int> event_of_;
  std::vector<Slowed> slowed_;
};

// A GPU: two streams, each in order. What the communication stream runs begins no earlier than what
// precedes it in the plan on the compute stream has ended.
class StreamTimeline : public Timeline {
 public:
  using Timeline::Timeline;

  Replay run() {
    int compute = -1;  // the last event of each stream
    int communication = -1;
    for (int i = 0; i < count(); ++i) {
      const MeasuredInstruction& each = instruction(i);
      Begin begin;
      const bool beside = each.stream == kCommunicationStream;
      begin.after(events_, compute);
      if (beside) begin.after(events_, communication);
      for (const int before : each.after) begin.after(events_, event_of(before));
      double end = 0;
      if (each.collective.empty()) {
        end = beside ? begin.at + compute_time(i) : computed(begin.at, compute_time(i));
      } else {
        wait_for_all_replicas(i, begin);
        end = begin.at + collective(i).total;
        if (beside) slow_down(begin.at, end, share(i));
      }
      (beside ? communication : compute) =
          add(i, beside ? Lane::Communication : Lane::Compute, begin, end);
    }
    return finish();
  }
};

// A CPU: one thread runs everything but the transfer of bytes between hosts. It goes on with
// collectives, and with what follows them, between two kernels.
class ThreadTimeline : public Timeline {
 public:
  using Timeline::Timeline;

  Replay run() {
    for (int i = 0; i < count(); ++i) {
      const MeasuredInstruction& each = instruction(i);
      if (each.stream == kCommunicationStream) {
        queue_.push_back(i);
        begin_transfers();
      } else {
        for (const int before : each.after) {
          if (instruction(before).stream == kCommunicationStream) finish_up_to(before);
        }
        run_here(i);
      }
      carry_on();
    }
    finish_up_to(count());
    return finish();
  }

 private:
  double clock() const { return last_ < 0 ? 0 : end_of(last_); }
  Begin now() const {
    Begin begin;
    begin.after(events_, last_);
    return begin;
  }

  // A kernel, or a collective in the middle of the computation, for which the thread waits.
  void run_here(int i) {
    Begin begin = now();
    if (instruction(i).collective.empty()) {
      last_ = add(i, Lane::Compute, begin, computed(begin.at, compute_time(i)));
      return;
    }
    wait_for_all_replicas(i, begin);
    begin.after(events_, link_);
    last_ = add(i, collective(i).by_thread ? Lane::Compute : Lane::Link, begin,
                begin.at + collective(i).total);
    if (!collective(i).by_thread) link_ = last_;
  }

  // A collective starts at once if all its values come from the compute stream.
  bool may_start(int i, std::size_t place) const {
    for (const int before : instruction(i).after) {
      const bool queued = instruction(before).stream == kCommunicationStream;
      if (queued && done_ < place) return false;
    }
    return true;
  }

  void begin_transfers() {
    for (; started_ < queue_.size(); ++started_) {
      const int i = queue_[started_];
      if (instruction(i).collective.empty() || collective(i).by_thread) continue;
      if (!may_start(i, started_)) return;
      Begin begin = now();
      wait_for_all_replicas(i, begin);
      begin.after(events_, link_);
      link_ = add(i, Lane::Link, begin, begin.at + collective(i).total);
      slow_down(begin.at, end_of(link_), share(i));
    }
  }

  // Whether the next of the queue can be run or is over.
  bool is_ready(int i) const {
    if (instruction(i).collective.empty()) return true;
    if (collective(i).by_thread) return true;
    return event_of(i) >= 0 && end_of(event_of(i)) <= clock();
  }

  void take(int i) {
    if (instruction(i).collective.empty()) {
      const Begin begin = now();
      last_ = add(i, Lane::Communication, begin, computed(begin.at, compute_time(i)));
    } else if (collective(i).by_thread) {
      Begin begin = now();
      wait_for_all_replicas(i, begin);
      last_ = add(i, Lane::Communication, begin, begin.at + collective(i).total);
    } else if (end_of(event_of(i)) > clock()) {
      last_ = event_of(i);  // the thread has waited for it
    }
    ++done_;
    begin_transfers();
  }

  void carry_on() {
    while (done_ < queue_.size() && is_ready(queue_[done_])) take(queue_[done_]);
  }

  void finish_up_to(int instruction) {
    while (done_ < queue_.size() && queue_[done_] <= instruction) take(queue_[done_]);
  }

  std::vector<int> queue_;  // the instructions of the communication stream that were reached
  std::size_t started_ = 0;
  std::size_t done_ = 0;
  int last_ = -1;  // the event with which the thread's clock stands
  int link_ = -1;  // the last transfer
};

}  // namespace

Replay replay(const MeasuredStep& step, const ReplayCosts& costs, double factor,
              const std::vector<double>& arrivals) {
  return costs.on_thread ? ThreadTimeline(step, costs, factor, arrivals).run()
                         : StreamTimeline(step, costs, factor, arrivals).run();
}

}  // namespace lockstep
