// Reports: what the control plane tells the launcher, from its own threads.
#pragma once

#include <sys/eventfd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/cluster/launch/control.h"
#include "lockstep/cluster/launch/descriptor.h"

namespace lockstep::launch {

class Reports {
 public:
  Reports() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) fail_with_errno("an event cannot be created");
  }

  // From any thread.
  void add(ControlReport report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    eventfd_write(event_.get(), 1);
  }
  int descriptor() const { return event_.get(); }  // readable when there is something to take
  std::vector<ControlReport> take() {
    const std::lock_guard lock(mutex_);
    eventfd_t count = 0;
    eventfd_read(event_.get(), &count);
    return std::exchange(reports_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<ControlReport> reports_;
  Descriptor event_;
};

}  // namespace lockstep::launch
