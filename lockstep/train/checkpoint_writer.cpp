#include "lockstep/train/checkpoint_writer.h"

#include <chrono>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

void CheckpointWriter::start(std::function<void()> write) {
  ensure(!in_flight_.valid(), "[checkpoint] a write was started while another is in flight");
  in_flight_ = std::async(std::launch::async, std::move(write));
}

void CheckpointWriter::check() {
  if (!in_flight_.valid()) return;
  if (in_flight_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish();
}

void CheckpointWriter::finish() {
  if (in_flight_.valid()) std::exchange(in_flight_, {}).get();
}

void CheckpointWriter::drain() noexcept {
  if (in_flight_.valid()) in_flight_.wait();
  in_flight_ = {};
}

}  // namespace lockstep
