// Runtime: what all stages of one running iterator share: the threads and the memory they may use,
// what they have done, and what was passed over.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/data/budget.h"
#include "lockstep/data/gate.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/tuning.h"
#include "lockstep/data/wait_clock.h"
#include "lockstep/device/device.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

class DatasetNode;

class Runtime {
 public:
  // Batches lie in `memory`: the host's, or pinned. Spans go to `recorder` where there is one; it
  // must outlive the runtime.
  Runtime(Budget budget, Device& memory, Recorder* recorder,
          std::shared_ptr<PipelineTuning> tuning = std::make_shared<PipelineTuning>());

  // Every gate is shut by then. Forgets the work that has not begun, and waits for what has.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int cores() const { return budget_.cores; }
  std::size_t memory_budget() const { return budget_.memory_bytes; }
  Device& memory() const { return memory_; }

  // What earlier passes learned, and this one learns for later ones.
  PipelineTuning& tuning() const { return *tuning_; }
  // Gives every stage of the pipeline that ends with this node its key, before any is at work.
  void name_stages(const DatasetNode& last);

  // The stage of a node: made at its first mention.
  Stage& stage(const DatasetNode& node);
  // Lets a node, and those it reads, count as others that do the same work: the data sets that
  // interleave opens one after the other are all measured as the first. To be forgotten before it
  // goes.
  void measure_as(const DatasetNode& node, const DatasetNode& model);
  void forget(const DatasetNode& node);

  // Set when the iterator goes: what takes long (a snapshot being written, a filter that finds
  // nothing) looks here now and then, and ends.
  std::atomic<bool> ending = false;

  // Runs work on one of the pipeline's threads, soon, if the gate is still open then. Work never
  // waits for other work that has not begun: there may be but one thread. It is told where its
  // spans go: null without a recorder.
  void enqueue(const std::shared_ptr<Gate>& gate, std::function<void(Track*)> work);

  // Whether the order of the elements is the same every time; false once a stage is made that gives
  // them as they are ready.
  std::atomic<bool> in_order = true;

  // How long the consumer of the whole pipeline has waited for elements so far.
  WaitClock consumer_wait;

  // False: work is told of no tracks. Another iterator may still be using them.
  std::atomic<bool> recording = true;

  // Memory that is kept between elements (queues, caches). False where the budget has not as much
  // left; nothing is taken then.
  bool reserve(std::size_t bytes);
  void release(std::size_t bytes) { reserved_ -= bytes; }
  std::size_t reserved() const { return reserved_; }

  void skipped(const Stage& stage, std::string what);
  std::int64_t skipped_count() const;
  std::vector<Skipped> skipped_list() const;  // the first ones

  // A stage's name as spans want it; null without a recorder.
  const char* intern(const Stage& stage);

 private:
  static constexpr std::size_t kMostSkippedKept = 100;

  // Has oneTBB make as many threads for as long as it lives.
  class Threads {
   public:
    explicit Threads(int cores);
    ~Threads();
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

   private:
    int cores_;
  };

  // The work that has not begun, in its order. oneTBB is not given the work itself, only a task
  // that takes the next from here: it may come to a task late, or never where the process ends.
  class Queue;

  // A tbb::task_arena, whose header is long: only runtime.cpp reads it.
  class Arena;

  Budget budget_;
  Device& memory_;
  Recorder* recorder_;
  std::shared_ptr<PipelineTuning> tuning_;
  std::atomic<std::size_t> reserved_ = 0;
  Threads threads_;
  std::unique_ptr<Arena> arena_;
  std::shared_ptr<Queue> queue_;
  std::int64_t queue_number_;  // by which tasks find it

  void name_stages(const DatasetNode& node, const std::string& key);

  mutable std::mutex mutex_;  // guards what follows
  std::map<const DatasetNode*, Stage> stages_;
  std::map<const DatasetNode*, Stage*> measured_as_;
  std::map<const Stage*, const char*> names_;
  std::vector<Track*> tracks_;  // one for each of the arena's places
  std::int64_t skipped_count_ = 0;
  std::vector<Skipped> skipped_;
};

}  // namespace lockstep
