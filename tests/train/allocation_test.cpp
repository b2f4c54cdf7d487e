// A step calls no allocator: every call of operator new is counted while the executor runs, but for
// those that oneDNN's library makes by itself (it keeps a table of the arguments of each execution,
// which its interface offers no way around).
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

#include "lockstep/train/session.h"
#include "lockstep/train/step.h"
#include "train/problem.h"

namespace {

std::atomic<bool> counting = false;
std::atomic<long> allocations = 0;

void note(void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Dl_info where{};
  const bool known = dladdr(caller, &where) != 0 && where.dli_fname != nullptr;
  if (known && std::string_view(where.dli_fname).find("libdnnl") != std::string_view::npos) return;
  allocations.fetch_add(1);
}

void* allocate(std::size_t bytes, std::size_t alignment, void* caller) {
  note(caller);
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)),
                     std::max<std::size_t>(bytes, 1)) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace lockstep::testing {
namespace {

long allocations_of(Step& step, std::int64_t number) {
  allocations = 0;
  counting = true;
  step.run(number);
  counting = false;
  return allocations;
}

struct Case {
  std::shared_ptr<Network> network;
  ValueType images;
};

void expect_no_allocation(const Case& the_case) {
  const Loss loss = SparseCategoricalCrossentropy({.from_logits = true});
  const Optimizer optimizer = Adam();
  const Metric mean = LossMean("loss");
  const std::vector<Metric> metrics = {SparseCategoricalAccuracy()};
  Session session({});
  session.device().enter();
  StepCache cache;
  const std::int64_t batch = the_case.images.shape[0];
  Step& step = cache.get(session,
                         {.network = *the_case.network,
                          .loss = loss,
                          .optimizer = optimizer,
                          .loss_mean = mean,
                          .metrics = metrics,
                          .weighted_metrics = {},
                          .seed = 1},
                         {.mode = StepMode::Train,
                          .inputs = {the_case.images},
                          .labels = {DType::I32, Shape{batch}},
                          .weighted = false});
  step.feed({.inputs = {Tensor(the_case.images.dtype, the_case.images.shape)},
             .labels = Tensor(DType::I32, Shape{batch}),
             .sample_weight = {}});
  step.run(0);  // threads start here
  step.run(1);
  EXPECT_EQ(allocations_of(step, 2), 0);
  EXPECT_EQ(allocations_of(step, 3), 0);
}

TEST(Allocation, TheCounterCounts) {
  allocations = 0;
  counting = true;
  auto* kept = new std::vector<int>(100);
  counting = false;
  EXPECT_GE(allocations, 2);
  delete kept;
}

TEST(Allocation, ATrainingStepOfLeNetCallsNoAllocator) {
  expect_no_allocation({applications::lenet(), {DType::F32, {8, 28, 28, 1}}});
}

TEST(Allocation, ATrainingStepWithDropoutAndBatchNormCallsNoAllocator) {
  expect_no_allocation(
      {Network::sequential({Conv2D({.filters = 8, .padding = "same"}), BatchNormalization(),
                            Activation("relu"), Dropout({.rate = 0.5}), GlobalAveragePooling2D(),
                            Dense({.units = 10})}),
       {DType::F32, {4, 8, 8, 3}}});
}

}  // namespace
}  // namespace lockstep::testing
