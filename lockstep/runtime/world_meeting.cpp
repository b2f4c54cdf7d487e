// How the workers of a job meet: they tell one another their devices, and make the groups of their
// ranks.
#include <fmt/format.h>

#include <exception>
#include <utility>

#include "lockstep/comm/cuda/gpu_group.h"
#include "lockstep/comm/local/local_group.h"
#include "lockstep/plan/plan.h"
#include "lockstep/runtime/job_devices.h"
#include "lockstep/runtime/world.h"

namespace lockstep {
namespace {

constexpr char kNote = '\x1e';  // between a worker's devices and its note

}  // namespace

// Workers tell one another which devices they have: the names and numbers of all ranks follow. If
// one has none, all throw the reason.
void World::meet() {
  names_.clear();
  set_ranks_of_workers({});
  first_rank_ = 0;
  workers_ = 1;
  worker_ = 0;
  if (links_ == nullptr || links_->workers() == 1) {
    if (no_devices_ != nullptr) std::rethrow_exception(no_devices_);
    names_ = local_names();
    return;
  }
  workers_ = links_->workers();
  worker_ = links_->worker();
  keep(make_control(timeout_), control_);
  std::vector<std::vector<JobDevice>> devices;
  const auto mine = [&] {
    if (no_devices_ != nullptr) std::rethrow_exception(no_devices_);
    return fmt::format("{}{}{}", describe(devices_), kNote, note_);
  };
  for (std::string& theirs : gather(mine)) {
    const std::size_t end_of_devices = theirs.find(kNote);
    if (note_.empty()) note_ = theirs.substr(end_of_devices + 1);
    theirs.erase(end_of_devices);
    devices.push_back(parse_job_devices(theirs));
  }
  check_job_devices(devices, share_gpus_);
  std::vector<int> ranks;
  for (int w = 0; w < workers_; ++w) {
    if (w == worker_) first_rank_ = size();
    const std::vector<JobDevice>& theirs = devices[static_cast<std::size_t>(w)];
    ranks.push_back(static_cast<int>(theirs.size()));
    for (const JobDevice& device : theirs) {
      names_.push_back(fmt::format("{} of worker {}", device.name, w));
    }
  }
  set_ranks_of_workers(std::move(ranks));
}

void World::set_ranks_of_workers(std::vector<int> ranks) {
  const std::lock_guard lock(groups_mutex_);
  ranks_of_worker_ = std::move(ranks);
}

std::unique_ptr<Group> World::make_control(std::chrono::milliseconds timeout) {
  std::vector<std::string> workers;
  for (int w = 0; w < workers_; ++w) workers.push_back(fmt::format("worker {}", w));
  return links_->make_group(
      {.names = workers,
       .ranks_of_worker = std::vector<int>(static_cast<std::size_t>(workers_), 1),
       .timeout = timeout});
}

void World::add_groups() {
  const bool cuda = device(0).kind() == DeviceKind::Cuda;
  if (control_ != nullptr && cuda) {
    return add_group(make_gpu_workers_group(devices_, {.ranks_of_worker = ranks_of_worker_,
                                                       .worker = worker_,
                                                       .timeout = timeout_,
                                                       .workers = make_control(timeout_)}));
  }
  while (std::ssize(groups_) <= kCommunicationStream) {
    std::unique_ptr<Group> group;
    if (control_ != nullptr) {
      group = links_->make_group(
          {.names = names_, .ranks_of_worker = ranks_of_worker_, .timeout = timeout_});
    } else if (cuda) {
      group = make_gpu_group(devices_, timeout_);
    } else {
      group = std::make_unique<LocalGroup>(LocalGroupOptions{.names = names_, .timeout = timeout_});
    }
    add_group(std::move(group));
  }
}

void World::add_group(std::shared_ptr<Group> group) {
  std::shared_ptr<Group> kept;
  keep(std::move(group), kept);
  const std::lock_guard lock(groups_mutex_);
  groups_.push_back(std::move(kept));
}

void World::keep(std::shared_ptr<Group> group, std::shared_ptr<Group>& place) {
  const std::lock_guard lock(groups_mutex_);
  if (failure_) group->abort(*failure_);
  place = std::move(group);
}

// Before ranks run, so that a worker that fails meanwhile ends it by abort_all. Nobody begins
// before all have come here: a worker that has ended cannot, which the control group knows.
void World::connect_groups() {
  for (const auto& group : groups_) {
    if (group->connected()) continue;
    exchange("");
    gather([&] {
      group->connect();
      return std::string();
    });
  }
}

}  // namespace lockstep
