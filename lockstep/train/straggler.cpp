#include "lockstep/train/straggler.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// By worker. Among many, the median of all is that of a worker's peers.
std::vector<double> medians_of_peers(const std::vector<double>& numbers) {
  constexpr std::size_t kMany = 16;
  if (numbers.size() > kMany) return std::vector<double>(numbers.size(), median(numbers));
  std::vector<double> medians;
  for (std::size_t w = 0; w < numbers.size(); ++w) {
    std::vector<double> peers = numbers;
    peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(w));
    medians.push_back(median(std::move(peers)));
  }
  return medians;
}

}  // namespace

std::string SlowWorker::text() const {
  return fmt::format(
      "worker {} is {:.1f}x slower than the others: {:.0f}% of each step is spent waiting for it",
      worker, times, 100 * waiting);
}

StragglerWatch::StragglerWatch(int workers, StragglerOptions options)
    : workers_(static_cast<std::size_t>(workers)), options_(options), named_(workers_) {
  ensure(options.window > 0 && options.window % 4 == 0, "[straggler] a window of {} steps",
         options.window);
}

void StragglerWatch::observe(std::span<const WorkerStep> workers, double step_s) {
  if (workers_ < 2 || workers.size() != workers_ || step_s <= 0) return;
  for (const WorkerStep& one : workers) {
    if (one.busy_s <= 0 || one.rows <= 0) return;
  }
  std::vector<double> busy;
  std::vector<double> per_row;
  for (const WorkerStep& one : workers) {
    busy.push_back(one.busy_s);
    per_row.push_back(one.busy_s / static_cast<double>(one.rows));
  }
  const std::vector<double> peers = medians_of_peers(busy);
  const std::vector<double> rows = medians_of_peers(per_row);
  Step step{.times = {}, .late = {}, .seconds = step_s};
  for (std::size_t w = 0; w < workers_; ++w) {
    step.times.push_back(std::min(busy[w] / peers[w], per_row[w] / rows[w]));
    step.late.push_back(std::clamp(busy[w] - peers[w], 0.0, step_s));
  }
  window_.push_back(std::move(step));
  if (window_.size() > options_.window) window_.pop_front();
  if (++observed_ % (options_.window / 4) == 0) judge();
}

void StragglerWatch::judge() {
  now_.reset();
  if (window_.size() < options_.window) return;
  const std::size_t quarter = options_.window / 4;
  for (std::size_t w = 0; w < workers_; ++w) {
    std::vector<double> all;
    std::vector<double> late;
    double least = options_.times;  // of the quarters' medians
    for (std::size_t begin = 0; begin < window_.size(); begin += quarter) {
      std::vector<double> times;
      for (std::size_t i = begin; i < begin + quarter; ++i) {
        times.push_back(window_[i].times[w]);
        late.push_back(window_[i].late[w] / window_[i].seconds);
      }
      all.insert(all.end(), times.begin(), times.end());
      const double middle = median(std::move(times));
      least = begin == 0 ? middle : std::min(least, middle);
    }
    if (least < options_.times) continue;
    const double times = median(std::move(all));
    if (now_ && now_->times >= times) continue;
    now_ = SlowWorker{
        .worker = static_cast<int>(w), .times = times, .waiting = median(std::move(late))};
  }
  if (!now_) return;
  // The first time counts for the window that shows it, later ones for its last quarter.
  SlowWorker& named = named_[static_cast<std::size_t>(now_->worker)];
  const std::size_t steps = named.steps == 0 ? window_.size() : quarter;
  now_->steps = named.steps + static_cast<std::int64_t>(steps);
  now_->seconds = named.seconds;
  for (std::size_t i = window_.size() - steps; i < window_.size(); ++i) {
    now_->seconds += window_[i].late[static_cast<std::size_t>(now_->worker)];
  }
  named = *now_;
}

std::vector<SlowWorker> StragglerWatch::all() const {
  std::vector<SlowWorker> found;
  for (const SlowWorker& one : named_) {
    if (one.steps > 0) found.push_back(one);
  }
  return found;
}

}  // namespace lockstep
