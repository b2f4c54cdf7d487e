// CheckpointWriter: writes checkpoints on a thread of its own, so that training goes on meanwhile.
// One write at a time; none is left out.
#pragma once

#include <functional>
#include <future>

namespace lockstep {

class CheckpointWriter {
 public:
  CheckpointWriter() = default;
  // Waits for the write in flight.
  ~CheckpointWriter() { drain(); }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Calls `write` on the writer's thread. The write before it must have been finished.
  void start(std::function<void()> write);
  // Throws what a write threw, once. Does not wait.
  void check();
  // Waits for the write in flight, then check().
  void finish();
  // Waits, and forgets errors: when another one is already on its way to the user.
  void drain() noexcept;

 private:
  std::future<void> in_flight_;
};

}  // namespace lockstep
