// RankMemory: the memory that one rank uses on its device. It counts all that the rank allocates
// there, and owns the arena in which all plans of the rank compute: the training step, the short
// last batch, evaluation, the user's functions.
//
// Plans of a rank run one at a time, in the order in which they are issued, so one block of memory
// as large as the largest of them serves all. When a larger plan comes, the arena is freed and a
// larger one is allocated; older plans bind their kernels to the new addresses before they run
// again. Growing in place, in reserved addresses, would avoid that, but a reservation counts
// against `ulimit -v`, and memory that is mapped piece by piece on a GPU must be opened to each of
// its peers. Binding again happens once or twice in a run and costs as much as creating the plan's
// kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/device/device.h"

namespace lockstep {

class RankMemory {
 public:
  explicit RankMemory(Device& device) : device_(device) {}
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  // Device memory that counts as this rank's until its last owner frees it, which may be after this
  // object is gone. Otherwise like Device's functions of these names.
  std::shared_ptr<Buffer> allocate(std::size_t bytes);
  std::shared_ptr<Buffer> allocate_persistent(std::size_t bytes);
  // All of it, including the arena.
  std::size_t resident_bytes() const { return *resident_; }

  // Makes the arena at least this large. If that needs another one, waits until the device has run
  // what was issued, frees the old arena and allocates the new one; if there is too little memory
  // for it, there is no arena until somebody asks for less.
  void reserve_arena(std::size_t bytes);
  std::byte* arena() const { return arena_ == nullptr ? nullptr : arena_->data(); }
  std::size_t arena_bytes() const { return arena_ == nullptr ? 0 : arena_->bytes(); }
  // Changes whenever the arena has moved.
  std::uint64_t arena_generation() const { return generation_; }
  // Makes a plan the user of the arena. True if another plan was, or none.
  bool enter_arena(const void* plan);

  Device& device() const { return device_; }
  // When the last run of one of its plans ended, by the host's clock; kept by RunClock.
  std::int64_t& last_run_end_ns() { return last_run_end_ns_; }

 private:
  std::shared_ptr<Buffer> counted(std::shared_ptr<Buffer> buffer) const;

  Device& device_;
  std::shared_ptr<std::atomic<std::size_t>> resident_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  std::shared_ptr<Buffer> arena_;
  std::uint64_t generation_ = 0;
  const void* plan_ = nullptr;  // whose values are in the arena
  std::int64_t last_run_end_ns_ = 0;
};

}  // namespace lockstep
