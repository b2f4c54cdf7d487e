#include "lockstep/train/job_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <ostream>

#include "lockstep/profile/recorder.h"
#include "lockstep/train/figure.h"
#include "lockstep/train/model.h"

namespace lockstep {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);
// Lines that are redrawn must not wrap, and the width of the terminal is not known here.
constexpr std::size_t kColumns = 79;
constexpr std::size_t kNameColumns = 24;

std::string text_of(const std::exception_ptr& error) {
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& what) {
    text = what.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
  return text.empty() ? "an exception without a message" : text;
}

// The last epoch's loss and metrics: "  loss 0.3142  accuracy 0.8750".
std::string numbers(const History& history) {
  std::string text;
  if (history.epochs.empty()) return text;
  for (const auto& [name, value] : history.epochs.back().logs.items()) {
    if (name == "seconds" || name == "samples_per_s" || name == "lr") continue;
    text += "  " + name + " " + figure(value);
  }
  return text;
}

// "3/10", or "3" if the total is unknown.
std::string of_all(std::int64_t done, const std::optional<std::int64_t>& all) {
  return all ? fmt::format("{}/{}", done, *all) : fmt::format("{}", done);
}

}  // namespace

// Reports the progress of fit to the queue, and stops it if the queue says so.
class JobQueue::Follower final : public Callback {
 public:
  Follower(JobQueue& board, std::size_t job) : board_(board), job_(job) {}

  void on_train_begin(Model& model, const FitInfo& info) override {
    if (!board_.begin_fit(job_, info)) model.stop_training();
  }
  void on_epoch_begin(Model& model, std::int64_t epoch) override {
    if (!board_.begin_epoch(job_, epoch)) model.stop_training();
  }
  void on_batch_end(Model& model, std::int64_t step, const BatchLogs& logs) override {
    if (!board_.step(job_, step + 1, logs)) model.stop_training();
  }
  bool needs_sync(const Model&, std::int64_t) override { return false; }

 private:
  JobQueue& board_;
  std::size_t job_;
};

JobQueue::JobQueue(std::vector<std::string> names, std::vector<std::string> devices)
    : names_(std::move(names)),
      devices_(std::move(devices)),
      jobs_(names_.size()),
      open_(names_.size()) {
  events_.reserve(2 * names_.size());
}

std::optional<std::size_t> JobQueue::take(std::size_t device) noexcept {
  const std::lock_guard lock(mutex_);
  if (abandoned_ || next_ == jobs_.size()) return std::nullopt;
  Job& job = jobs_[next_];
  job.state = State::Running;
  job.device = device;
  job.begin_ns = now_ns();
  events_.push_back({.job = next_, .ended = false});
  changed_.notify_one();
  return next_++;
}

void JobQueue::end_well(std::size_t job, History history) noexcept {
  const std::lock_guard lock(mutex_);
  jobs_[job].history = std::move(history);
  end(job, State::Done);
}

void JobQueue::end_badly(std::size_t job, std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  jobs_[job].error = std::move(error);
  end(job, State::Failed);
}

void JobQueue::end(std::size_t job, State state) noexcept {
  jobs_[job].state = state;
  jobs_[job].end_ns = now_ns();
  events_.push_back({.job = job, .ended = true});
  --open_;
  changed_.notify_one();
}

CallbackRef JobQueue::callback(std::size_t job) {
  return std::make_shared<Follower>(*this, job);
}

bool JobQueue::begin_fit(std::size_t job, const FitInfo& info) {
  const std::lock_guard lock(mutex_);
  jobs_[job].epochs = info.epochs;
  jobs_[job].steps_per_epoch = info.steps_per_epoch;
  return !abandoned_;
}

bool JobQueue::begin_epoch(std::size_t job, std::int64_t epoch) {
  const std::lock_guard lock(mutex_);
  Job& mine = jobs_[job];
  mine.epoch = epoch;
  mine.steps = 0;
  mine.samples = 0;
  mine.epoch_begin_ns = now_ns();
  return !abandoned_;
}

bool JobQueue::step(std::size_t job, std::int64_t steps, const BatchLogs& logs) {
  const std::lock_guard lock(mutex_);
  Job& mine = jobs_[job];
  mine.steps = steps;
  mine.samples += logs.samples();
  mine.loss = logs.loss();
  return !abandoned_;
}

void JobQueue::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
}

// Lines are made with the mutex held and written without it, so that a slow stream delays no job.
void JobQueue::watch(std::ostream* stream, bool terminal) {
  std::unique_lock lock(mutex_);
  std::size_t drawn = 0;  // lines to redraw, below the permanent ones
  for (bool over = false; !over;) {
    if (stream != nullptr && terminal) {
      changed_.wait_for(lock, kRedraw, [&] { return open_ == 0; });
    } else {
      changed_.wait(lock, [&] { return open_ == 0 || (stream != nullptr && !events_.empty()); });
    }
    over = open_ == 0;
    if (stream == nullptr) continue;
    std::string text;
    if (drawn > 0) text += fmt::format("\x1b[{}A\x1b[J", drawn);
    text += lines_of_events(/*with_beginnings=*/!terminal);
    drawn = 0;
    if (terminal && !over) {
      for (const std::string& line : running_lines()) {
        text += line + '\n';
        ++drawn;
      }
    }
    lock.unlock();
    *stream << text << std::flush;
    lock.lock();
  }
}

std::string JobQueue::lines_of_events(bool with_beginnings) {
  std::string text;
  for (const Event& event : events_) {
    if (event.ended) {
      text += end_line(event.job) + '\n';
    } else if (with_beginnings) {
      text += begin_line(event.job) + '\n';
    }
  }
  events_.clear();
  return text;
}

std::string JobQueue::begin_line(std::size_t job) const {
  return fmt::format("{}: begins on {} ({} of {})", names_[job], devices_[jobs_[job].device],
                     job + 1, jobs_.size());
}

std::string JobQueue::end_line(std::size_t job) const {
  const Job& mine = jobs_[job];
  if (mine.state == State::Failed) {
    return fmt::format("{}: failed on {} after {:.1f} s: {}", names_[job], devices_[mine.device],
                       mine.seconds(), text_of(mine.error));
  }
  return fmt::format("{}: {} epochs on {} in {:.1f} s{}", names_[job], mine.history->epochs.size(),
                     devices_[mine.device], mine.seconds(), numbers(*mine.history));
}

// One line per running job, in the order of the jobs, and a line that counts jobs by state.
std::vector<std::string> JobQueue::running_lines() const {
  std::size_t width = 0;
  std::size_t count[4] = {0, 0, 0, 0};
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    ++count[static_cast<std::size_t>(jobs_[i].state)];
    if (jobs_[i].state == State::Running) width = std::max(width, names_[i].size());
  }
  width = std::min(width, kNameColumns);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (jobs_[i].state != State::Running) continue;
    lines.push_back(running_line(jobs_[i], names_[i], width));
  }
  lines.push_back(fmt::format(
      "{} running, {} waiting, {} done, {} failed", count[static_cast<std::size_t>(State::Running)],
      count[static_cast<std::size_t>(State::Waiting)], count[static_cast<std::size_t>(State::Done)],
      count[static_cast<std::size_t>(State::Failed)]));
  return lines;
}

std::string JobQueue::running_line(const Job& job, const std::string& name,
                                   std::size_t width) const {
  std::string line = fmt::format("{:<{}.{}}  {}", name, width, width, devices_[job.device]);
  if (job.steps == 0 && job.epoch_begin_ns == 0) {
    line += "  starting";
  } else {
    line += fmt::format("  epoch {}/{}  step {}", job.epoch + 1, job.epochs,
                        of_all(job.steps, job.steps_per_epoch));
  }
  if (job.samples > 0) {
    const double seconds = static_cast<double>(now_ns() - job.epoch_begin_ns) * 1e-9;
    line += fmt::format("  loss {:.4f}  {:.0f} samples/s", job.loss,
                        static_cast<double>(job.samples) / std::max(seconds, 1e-9));
  }
  return fmt::format("{:.{}}", line, kColumns);
}

std::vector<TrainResult> JobQueue::results() {
  const std::lock_guard lock(mutex_);
  std::vector<TrainResult> results;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = jobs_[i];
    results.push_back({.name = names_[i],
                       .device = devices_[job.device],
                       .history = std::move(job.history),
                       .error = job.error ? text_of(job.error) : "",
                       .seconds = job.seconds()});
  }
  return results;
}

}  // namespace lockstep
