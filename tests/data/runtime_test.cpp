// The threads that the stages of an iterator share.
#include "lockstep/data/pipeline/runtime.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

// While the only thread is blocked in its first task, the runtime is destroyed: the queued task
// never runs, and what it holds is released together with the runtime, not when oneTBB gets to it.
TEST(Runtime, DropsQueuedTasksWhenItIsDestroyed) {
  auto token = std::make_shared<int>(0);
  const std::weak_ptr<int> held = token;
  bool ran = false;
  {
    Runtime runtime({.cores = 1}, host(), nullptr);
    const auto running = std::make_shared<Gate>();
    const auto waiting = std::make_shared<Gate>();
    std::promise<void> begun;
    std::promise<void> go_on;
    runtime.enqueue(running, [&](Track*) {
      begun.set_value();
      go_on.get_future().wait();
    });
    begun.get_future().wait();
    runtime.enqueue(waiting, [&ran, token = std::move(token)](Track*) { ran = true; });
    waiting->shut();
    go_on.set_value();
    running->shut();
  }
  EXPECT_FALSE(ran);
  EXPECT_TRUE(held.expired());
}

}  // namespace
}  // namespace lockstep
