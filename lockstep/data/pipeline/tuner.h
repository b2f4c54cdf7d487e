// What AUTOTUNE decides. Both tuners measure how long the consumer of the whole pipeline waits. If
// it does not wait, there is nothing to gain, and threads and memory are better left to others.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "lockstep/data/pipeline/runtime.h"

namespace lockstep {

// How many threads work on a stage. It starts with what an earlier pass learned; if there was none,
// with one thread and, after the first few elements, with as many as their cost justifies. It
// doubles them while the consumer waits and all threads are busy, and removes one when fewer would
// do. If a reduction proves wrong, it is undone and not tried again for a long time, so that the
// number settles. If the consumer mostly waits and threads are idle (they wait for the input), the
// idle ones are removed at once.
class ThreadTuner {
 public:
  // `threads`: a fixed number, or AUTOTUNE. `busy_ns`: the busy time of the stage's threads so far.
  ThreadTuner(Runtime& runtime, Stage& stage, const std::atomic<std::int64_t>& busy_ns, int threads,
              std::int64_t now);

  int threads() const { return threads_; }
  // Call now and then, one thread at a time; decides again once there are enough new measurements.
  void look(std::int64_t now);

 private:
  // The first decision for a stage about which nothing is known.
  void estimate(std::int64_t now);
  void start_over(std::int64_t now);
  void remember();
  void change(int threads, const std::string& why);
  void say(const std::string& why);

  Runtime& runtime_;
  Stage& stage_;
  const std::atomic<std::int64_t>& busy_ns_;
  bool tunes_;
  int threads_;
  std::int64_t since_ns_ = 0;
  std::int64_t busy_before_ = 0;
  std::int64_t items_before_ = 0;
  std::int64_t made_before_ = 0;
  std::int64_t waited_before_ = 0;
  bool first_passed_ = false;  // the first element, whose cost is not typical
  bool known_ = false;         // about how many threads it needs
  bool stepped_down_ = false;  // whether the last change was a reduction
  std::int64_t no_fewer_until_ns_ = 0;
  std::int64_t no_more_until_ns_ = 0;
};

// How many elements a queue holds. It doubles whenever the consumer finds the queue empty although
// it was full before: the producer is fast enough on average, but uneven. The memory comes from the
// budget. It starts with the length that an earlier pass learned.
class BufferTuner {
 public:
  // `elements`: a fixed number, or AUTOTUNE.
  BufferTuner(Runtime& runtime, Stage& stage, int elements);
  ~BufferTuner();
  BufferTuner(const BufferTuner&) = delete;
  BufferTuner& operator=(const BufferTuner&) = delete;

  std::size_t elements() const { return elements_; }
  // An element was added: the queue holds `held` now.
  void put(std::size_t held, std::size_t element_bytes);
  // The consumer found the queue empty.
  void found_empty();

 private:
  void remember();

  Runtime& runtime_;
  Stage& stage_;
  bool tunes_;
  std::size_t elements_;
  std::size_t element_bytes_ = 0;
  std::size_t reserved_ = 0;
  bool was_full_ = false;
  bool at_limit_ = false;
};

}  // namespace lockstep
