#include "lockstep/data/pipeline/runtime.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/node.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cpu/memory.h"

namespace lockstep {
namespace {

Budget filled_in(Budget budget) {
  require(budget.cores >= 0, "[data] a budget cannot have {} cores; 0 stands for all of them",
          budget.cores);
  if (budget.cores == 0) budget.cores = static_cast<int>(available_cores().size());
  if (budget.memory_bytes == 0) {
    budget.memory_bytes = machine_memory() / 4;
  }
  return budget;
}

// The limit on oneTBB's threads for the whole process. oneTBB obeys the lowest limit that it is
// given, so all pipelines share one: enough threads for those that run, but not more than there are
// cores unless a single pipeline may use more. (Idle threads spin for a while before they sleep, so
// that too many would slow each other down.)
class ThreadLimit {
 public:
  void add(int cores) {
    std::lock_guard lock(mutex_);
    running_.insert(cores);
    set();
  }
  void remove(int cores) {
    std::lock_guard lock(mutex_);
    running_.erase(running_.find(cores));
    set();
  }

 private:
  void set() {
    const int all = std::accumulate(running_.begin(), running_.end(), 0);
    const int machine = static_cast<int>(available_cores().size());
    const int most = running_.empty() ? 0 : std::max(machine, *running_.rbegin());
    // oneTBB counts the calling thread.
    const auto limit = static_cast<std::size_t>(std::min(all, most)) + 1;
    if (limit == limit_) return;
    limit_ = limit;
    control_.reset();
    if (!running_.empty()) control_.emplace(tbb::global_control::max_allowed_parallelism, limit);
  }

  std::mutex mutex_;
  std::multiset<int> running_;  // the cores of every pipeline
  std::size_t limit_ = 0;
  std::optional<tbb::global_control> control_;
};

ThreadLimit& thread_limit() {
  static ThreadLimit limit;
  return limit;
}

// Objects that tasks look up by number. A task owns nothing of ours, so that tasks which oneTBB
// still holds when the process ends have nothing to release.
template <class T>
class Numbered {
 public:
  std::int64_t add(std::shared_ptr<T> thing) {
    std::lock_guard lock(mutex_);
    things_.emplace(++last_, std::move(thing));
    return last_;
  }
  void remove(std::int64_t number) {
    std::lock_guard lock(mutex_);
    things_.erase(number);
  }
  std::shared_ptr<T> find(std::int64_t number) {
    std::lock_guard lock(mutex_);
    const auto found = things_.find(number);
    return found == things_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<T>> things_;
};

// Never destroyed: a task may look up its queue while the process ends.
template <class T>
Numbered<T>& numbered() {
  static Numbered<T>& all = *std::make_unique<Numbered<T>>().release();
  return all;
}

}  // namespace

class Runtime::Queue {
 public:
  // The caller enqueues one task per call.
  void add(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    ++tasks_;
  }

  // The body of a task: runs the first work in the queue, if any.
  void run_one() {
    std::unique_lock lock(mutex_);
    if (!work_.empty()) {
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      ++running_;
      lock.unlock();
      work();
      work = nullptr;  // releases what it holds before it counts as finished
      lock.lock();
      --running_;
    }
    --tasks_;
    changed_.notify_all();
  }

  // Discards queued work and waits for running work; then waits briefly for the remaining tasks,
  // which have nothing left to do.
  void clear() {
    std::deque<std::function<void()>> forgotten;
    std::unique_lock lock(mutex_);
    forgotten.swap(work_);
    changed_.wait(lock, [&] { return running_ == 0; });
    changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return tasks_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  int running_ = 0;
  std::int64_t tasks_ = 0;  // that have not finished
};

class Runtime::Arena : public tbb::task_arena {
 public:
  using tbb::task_arena::task_arena;
};

Runtime::Threads::Threads(int cores) : cores_(cores) {
  thread_limit().add(cores_);
}

Runtime::Threads::~Threads() {
  thread_limit().remove(cores_);
}

void Stage::decided(std::string text) {
  std::lock_guard lock(mutex_);
  if (decisions_.size() == kMostDecisions) decisions_.erase(decisions_.begin());
  decisions_.push_back(std::move(text));
}

std::vector<std::string> Stage::decisions() const {
  std::lock_guard lock(mutex_);
  return decisions_;
}

void Stage::noted(std::string text) {
  std::lock_guard lock(mutex_);
  const bool known = std::ranges::find(notes_, text) != notes_.end();
  if (!known && notes_.size() < kMostNotes) notes_.push_back(std::move(text));
}

std::vector<std::string> Stage::notes() const {
  std::lock_guard lock(mutex_);
  return notes_;
}

Runtime::Runtime(Budget budget, Device& memory, Recorder* recorder,
                 std::shared_ptr<PipelineTuning> tuning)
    : budget_(filled_in(budget)),
      memory_(memory),
      recorder_(recorder),
      tuning_(std::move(tuning)),
      threads_(budget_.cores),
      arena_(std::make_unique<Arena>(budget_.cores, 0u)),
      queue_(std::make_shared<Queue>()),
      queue_number_(numbered<Queue>().add(queue_)) {
  if (recorder_ == nullptr) return;
  for (int i = 0; i < budget_.cores; ++i) {
    tracks_.push_back(&recorder_->track(fmt::format("input {}", i)));
  }
}

Runtime::~Runtime() {
  queue_->clear();
  numbered<Queue>().remove(queue_number_);
}

void Runtime::name_stages(const DatasetNode& last) {
  name_stages(last, "0 " + last.name());
}

void Runtime::name_stages(const DatasetNode& node, const std::string& key) {
  stage(node).key = key;
  const std::vector<std::shared_ptr<const DatasetNode>> inputs = node.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    name_stages(*inputs[i], fmt::format("{}/{} {}", key, i, inputs[i]->name()));
  }
}

Stage& Runtime::stage(const DatasetNode& node) {
  std::lock_guard lock(mutex_);
  if (const auto known = measured_as_.find(&node); known != measured_as_.end()) {
    return *known->second;
  }
  return stages_.try_emplace(&node, node.name()).first->second;
}

void Runtime::measure_as(const DatasetNode& node, const DatasetNode& model) {
  if (&node == &model || node.name() != model.name()) return;
  Stage& stage_of_model = stage(model);
  {
    std::lock_guard lock(mutex_);
    measured_as_[&node] = &stage_of_model;
  }
  const std::vector<std::shared_ptr<const DatasetNode>> inputs = node.inputs();
  const std::vector<std::shared_ptr<const DatasetNode>> models = model.inputs();
  for (std::size_t i = 0; i < std::min(inputs.size(), models.size()); ++i) {
    measure_as(*inputs[i], *models[i]);
  }
}

void Runtime::forget(const DatasetNode& node) {
  for (const std::shared_ptr<const DatasetNode>& input : node.inputs()) forget(*input);
  std::lock_guard lock(mutex_);
  measured_as_.erase(&node);
}

void Runtime::enqueue(const std::shared_ptr<Gate>& gate, std::function<void(Track*)> work) {
  queue_->add([this, gate, work = std::move(work)] {
    if (!gate->enter()) return;  // `this` may be destroyed
    const auto place = static_cast<std::size_t>(tbb::this_task_arena::current_thread_index());
    work(recording && place < tracks_.size() ? tracks_[place] : nullptr);
    gate->leave();
  });
  // The number is in oneTBB's memory: ThreadSanitizer does not see how its threads pass it on.
  arena_->enqueue([number = queue_number_]() __attribute__((no_sanitize("thread"))) {
    if (const std::shared_ptr<Queue> queue = numbered<Queue>().find(number)) queue->run_one();
  });
}

bool Runtime::reserve(std::size_t bytes) {
  std::size_t before = reserved_.load();
  do {
    if (bytes > budget_.memory_bytes || before > budget_.memory_bytes - bytes) return false;
  } while (!reserved_.compare_exchange_weak(before, before + bytes));
  return true;
}

void Runtime::skipped(const Stage& stage, std::string what) {
  std::lock_guard lock(mutex_);
  ++skipped_count_;
  if (skipped_.size() < kMostSkippedKept) skipped_.push_back({stage.name(), std::move(what)});
}

std::int64_t Runtime::skipped_count() const {
  std::lock_guard lock(mutex_);
  return skipped_count_;
}

std::vector<Skipped> Runtime::skipped_list() const {
  std::lock_guard lock(mutex_);
  return skipped_;
}

const char* Runtime::intern(const Stage& stage) {
  std::lock_guard lock(mutex_);
  const char*& name = names_[&stage];
  if (name == nullptr && recorder_ != nullptr) name = recorder_->intern(stage.name());
  return name;
}

}  // namespace lockstep
