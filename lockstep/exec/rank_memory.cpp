#include "lockstep/exec/rank_memory.h"

#include <utility>

namespace lockstep {

std::shared_ptr<Buffer> RankMemory::counted(std::shared_ptr<Buffer> buffer) const {
  *resident_ += buffer->bytes();
  Buffer* const data = buffer.get();
  return {data, [count = resident_, held = std::move(buffer)](Buffer*) mutable {
            *count -= held->bytes();
            held.reset();
          }};
}

std::shared_ptr<Buffer> RankMemory::allocate(std::size_t bytes) {
  return counted(device_.allocate(bytes));
}

std::shared_ptr<Buffer> RankMemory::allocate_persistent(std::size_t bytes) {
  return counted(device_.allocate_persistent(bytes));
}

void RankMemory::reserve_arena(std::size_t bytes) {
  if (arena_ != nullptr && bytes <= arena_->bytes()) return;
  device_.make_current();
  device_.synchronize();
  ++generation_;
  plan_ = nullptr;
  arena_.reset();  // first: both at once may be more than there is
  arena_ = counted(device_.allocate_unset(bytes));
}

bool RankMemory::enter_arena(const void* plan) {
  return std::exchange(plan_, plan) != plan;
}

}  // namespace lockstep
