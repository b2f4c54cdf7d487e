// What a world does about workers that fail: it tells the others, stops waiting for them, and meets
// the next generation.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/comm/failure.h"
#include "lockstep/device/cuda/gpu_state.h"
#include "lockstep/runtime/world.h"

namespace lockstep {
namespace {

// How long the membership may take to hear of a failure that the links have noticed.
constexpr std::chrono::seconds kNotice(30);

bool is_communication(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void World::throw_agreed(const Failure& failure) {
  agreed_ = failure.message;
  throw_failure(failure);
}

// Who caught an error may have said more about it.
bool World::is_agreed(const std::string& message) const {
  return !agreed_.empty() && message.find(agreed_) != std::string::npos;
}

void World::report(const std::exception_ptr& error) noexcept {
  if (membership_ == nullptr || workers() == 1) return;
  try {
    Failure failure = failure_of(worker(), error);
    if (is_agreed(failure.message)) return;
    failure.message = fmt::format("[worker {}] {}", worker(), failure.message);
    membership_->report_failure(failure);
  } catch (...) {
    // The others notice that this worker is gone.
  }
}

WorkerProgress World::progress() const {
  const auto waits = [](const std::shared_ptr<Group>& group) { return group->waiting(); };
  const char* const activity = activity_;
  const std::lock_guard lock(groups_mutex_);
  const bool waiting =
      (control_ != nullptr && control_->waiting()) || std::ranges::any_of(groups_, waits);
  // The control group first: ranks may be waiting for what this process does after it.
  Group::Awaited awaited = control_ != nullptr ? control_->awaited() : Group::Awaited();
  for (const auto& group : groups_) {
    const Group::Awaited more = group->awaited();
    if (awaited.worker < 0) awaited.worker = more.worker;
    awaited.messages += more.messages;
  }
  return {.step = static_cast<std::uint64_t>(step_.load()),
          .waiting = waiting,
          .waiting_for = awaited.worker,
          .messages = awaited.messages,
          .activity = activity != nullptr ? activity : fmt::format("step {}", step_.load())};
}

void World::abort_all(const Failure& failure) {
  std::vector<std::shared_ptr<Group>> of_workers;
  {
    const std::lock_guard lock(groups_mutex_);
    failure_ = failure;
    failed_.notify_all();
    of_workers = {control_, background_};
  }
  // Not under the lock, which heartbeats take: ending what runs on a GPU may take a while.
  for (const auto& group : of_workers) {
    if (group != nullptr) group->abort(failure);
  }
  abort_groups(failure);
}

// The failure is that of a worker.
void World::abort_groups(const Failure& failure) {
  std::vector<std::shared_ptr<Group>> groups;
  int first = 0;  // rank of the worker that failed
  {
    const std::lock_guard lock(groups_mutex_);
    groups = groups_;
    for (int w = 0; w < failure.rank && w < std::ssize(ranks_of_worker_); ++w) {
      first += ranks_of_worker_[static_cast<std::size_t>(w)];
    }
  }
  for (const auto& group : groups) {
    group->abort({.rank = first, .kind = failure.kind, .message = failure.message});
  }
}

bool World::goes_on_after(const std::exception_ptr& error) {
  if (!survives() || !is_communication(error)) return false;
  if (is_agreed(failure_of(worker(), error).message)) return false;
  {
    std::unique_lock lock(groups_mutex_);
    failed_.wait_for(lock, kNotice, [&] { return failure_.has_value(); });
    if (!failure_ || failure_->rank == worker_) return false;
  }
  // A process whose GPU cannot be used any more ends.
  for (const Device* device : devices_) {
    if (!is_usable(*device)) return false;
  }
  // Not under the lock, which heartbeats take while they hold their own.
  return membership_->goes_on();
}

std::string World::cause() const {
  const std::lock_guard lock(groups_mutex_);
  return failure_ ? failure_->message : "";
}

void World::admit_newcomers() {
  const bool some = chief() && membership_->newcomers() > 0;
  if (exchange(some ? "some" : "none").front() == "none") return;
  if (chief()) membership_->admit();
  std::unique_lock lock(groups_mutex_);
  failed_.wait_for(lock, kNotice, [&] { return failure_.has_value(); });
  fail<CommError>("[world] {}", failure_ ? failure_->message : "newcomers were not admitted");
}

void World::renew() {
  std::shared_ptr<Group> control;
  std::shared_ptr<Group> background;
  std::vector<std::shared_ptr<Group>> groups;
  {
    const std::lock_guard lock(groups_mutex_);
    control = std::move(control_);
    background = std::move(background_);
    groups = std::exchange(groups_, {});
    failure_.reset();
  }
  control.reset();
  background.reset();
  groups.clear();
  links_.reset();
  buckets_.reset();
  agreed_.clear();
  membership_->rejoin(timeout_);
  links_ = make_links_();
  meet();
  if (size() > 1) add_groups();
}

std::vector<std::string> World::meet_at(std::string_view mine) {
  const bool newcomer = std::exchange(newcomer_, false);
  std::vector<std::string> all = exchange(mine);
  newcomer_ = newcomer;
  return all;
}

void World::expect_met() const {
  require(!newcomer_,
          "[strategy] this worker came to a job that is already training, and can only take part "
          "in fit: put what all workers do together before the fit that they are in (evaluate, "
          "predict, save, functions of their own) behind it, or start the whole job again");
}

}  // namespace lockstep
