#include "lockstep/data/pipeline/buffer_pool.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "late_device.h"

namespace lockstep {
namespace {

TEST(BufferPool, ABufferIsReusedOnceItIsReleased) {
  BufferPool pool;
  std::shared_ptr<Buffer> held = pool.take(100);
  const std::byte* const first = held->data();
  EXPECT_NE(pool.take(100)->data(), first);
  held = nullptr;
  EXPECT_EQ(pool.take(50)->data(), first);
}

TEST(BufferPool, OnlyALimitedNumberOfBuffersIsPinned) {
  testing::LateDevice device;
  Device& pinned = device.allocate_host(0)->device();
  BufferPool pool(pinned);
  std::vector<std::shared_ptr<Buffer>> held;
  for (int i = 0; i < 100; ++i) held.push_back(pool.take(100));
  const auto here = [&](const std::shared_ptr<Buffer>& each) { return &each->device() == &pinned; };
  EXPECT_EQ(std::ranges::count_if(held, here), 32);
  EXPECT_TRUE(here(held.front()));
  held.erase(held.begin());
  EXPECT_TRUE(here(pool.take(100)));
}

}  // namespace
}  // namespace lockstep
