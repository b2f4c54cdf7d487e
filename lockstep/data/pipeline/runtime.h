// Runtime: what all stages of a running iterator share: threads, the memory budget, statistics, and
// the list of skipped elements.
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

#include "lockstep/data/pipeline/budget.h"
#include "lockstep/data/pipeline/gate.h"
#include "lockstep/data/pipeline/stage.h"
#include "lockstep/data/pipeline/wait_clock.h"
#include "lockstep/data/tuning.h"
#include "lockstep/device/device.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

class DatasetNode;

class Runtime {
 public:
  // Batches are allocated in `memory`, host or pinned. `recorder`, if not null, records spans and
  // must outlive the runtime.
  Runtime(Budget budget, Device& memory, Recorder* recorder,
          std::shared_ptr<PipelineTuning> tuning = std::make_shared<PipelineTuning>());

  // Every gate must be shut. Discards queued work and waits for running work.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int cores() const { return budget_.cores; }
  std::size_t memory_budget() const { return budget_.memory_bytes; }
  Device& memory() const { return memory_; }

  // What earlier passes learned and this one learns for later ones.
  PipelineTuning& tuning() const { return *tuning_; }
  // Sets the key of every stage of the pipeline that ends with this node, before any stage runs.
  void name_stages(const DatasetNode& last);

  // The stage of a node, created on first use.
  Stage& stage(const DatasetNode& node);
  // Counts the work of a node and its inputs as that of `model` and its inputs: all data sets that
  // an interleave opens are measured as the first one. Call forget() before the node is destroyed.
  void measure_as(const DatasetNode& node, const DatasetNode& model);
  void forget(const DatasetNode& node);

  // Set when the iterator is destroyed: long work (writing a snapshot, a filter that rejects
  // everything) checks it now and then and stops.
  std::atomic<bool> ending = false;

  // Runs work on one of the pipeline's threads, if the gate is still open by then. Work must never
  // wait for queued work: there may be only one thread. Its argument is the track for its spans,
  // null without a recorder.
  void enqueue(const std::shared_ptr<Gate>& gate, std::function<void(Track*)> work);

  // Whether the order of the elements is the same every time; false once a stage is created that
  // returns elements as soon as they are ready.
  std::atomic<bool> in_order = true;

  // How long the consumer of the whole pipeline has waited for elements so far.
  WaitClock consumer_wait;

  // False: work gets null tracks, because another iterator may still be using them.
  std::atomic<bool> recording = true;

  // Reserves memory that is kept between elements (queues, caches). If the budget does not have
  // that much left, reserves nothing and returns false.
  bool reserve(std::size_t bytes);
  void release(std::size_t bytes) { reserved_ -= bytes; }
  std::size_t reserved() const { return reserved_; }

  void skipped(const Stage& stage, std::string what);
  std::int64_t skipped_count() const;
  std::vector<Skipped> skipped_list() const;  // the first ones

  // The stage's name, interned for spans; null without a recorder.
  const char* intern(const Stage& stage);

 private:
  static constexpr std::size_t kMostSkippedKept = 100;

  // Allows oneTBB this many threads during its lifetime.
  class Threads {
   public:
    explicit Threads(int cores);
    ~Threads();
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

   private:
    int cores_;
  };

  // Work that has not started, in order. oneTBB does not get the work itself, only a task that
  // takes the next work from here: it may run a task late, or never if the process ends.
  class Queue;

  // A tbb::task_arena, declared here so that only runtime.cpp includes its large header.
  class Arena;

  Budget budget_;
  Device& memory_;
  Recorder* recorder_;
  std::shared_ptr<PipelineTuning> tuning_;
  std::atomic<std::size_t> reserved_ = 0;
  Threads threads_;
  std::unique_ptr<Arena> arena_;
  std::shared_ptr<Queue> queue_;
  std::int64_t queue_number_;  // by which tasks find the queue

  void name_stages(const DatasetNode& node, const std::string& key);

  mutable std::mutex mutex_;  // guards the members below
  std::map<const DatasetNode*, Stage> stages_;
  std::map<const DatasetNode*, Stage*> measured_as_;
  std::map<const Stage*, const char*> names_;
  std::vector<Track*> tracks_;  // one per slot of the arena
  std::int64_t skipped_count_ = 0;
  std::vector<Skipped> skipped_;
};

}  // namespace lockstep
