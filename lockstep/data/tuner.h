// What AUTOTUNE decides. Both tuners look at what the consumer of the whole pipeline met with: time
// it had to wait is time to win; without any, there is nothing to gain, and threads and memory are
// better left to others.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "lockstep/data/runtime.h"

namespace lockstep {

// How many threads work on a stage. It begins with what an earlier pass learned; where there was
// none, with one thread, and after the first few elements with as many as their cost is worth.
// Twice as many while the consumer waits and the stage's threads have no rest; one fewer when fewer
// would do. A step down that proves wrong is taken back, and not tried again for a long while: so
// it settles. Threads that stand idle although the consumer does nothing but wait (they queue for
// the input) go at once.
class ThreadTuner {
 public:
  // `threads`: a number that stays, or AUTOTUNE. `busy_ns` is how long its threads were at work so
  // far: a counter of the stage's.
  ThreadTuner(Runtime& runtime, Stage& stage, const std::atomic<std::int64_t>& busy_ns, int threads,
              std::int64_t now);

  int threads() const { return threads_; }
  // To be called now and then, by one thread at a time; looks again when enough has happened.
  void look(std::int64_t now);

 private:
  // After the first elements of a stage of which nothing is known.
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
  bool first_passed_ = false;  // the first element, whose cost is not that of the others
  bool known_ = false;         // about how many it takes
  bool stepped_down_ = false;  // by the last change
  std::int64_t no_fewer_until_ns_ = 0;
  std::int64_t no_more_until_ns_ = 0;
};

// How many elements wait in a queue. Twice as many whenever the consumer finds it empty although it
// was full before: the producer is quick enough, but not evenly. Each is paid for from the budget.
// It begins as long as an earlier pass left it.
class BufferTuner {
 public:
  // `elements`: a number that stays, or AUTOTUNE.
  BufferTuner(Runtime& runtime, Stage& stage, int elements);
  ~BufferTuner();
  BufferTuner(const BufferTuner&) = delete;
  BufferTuner& operator=(const BufferTuner&) = delete;

  std::size_t elements() const { return elements_; }
  // What was put in: the queue has `held` elements now.
  void put(std::size_t held, std::size_t element_bytes);
  // The consumer came and found nothing.
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
