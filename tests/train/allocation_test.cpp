// A step calls no allocator: while the executor runs, all calls of operator new and of malloc and
// its variants are counted. Those of oneDNN's library are counted separately: it builds a table of
// the arguments of each execution and packs matrices into internal buffers, and its interface has
// no way to avoid that.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "lockstep/runtime/session.h"
#include "lockstep/train/model_step.h"
#include "sanitized.h"
#include "train/problem.h"

// A sanitizer replaces malloc, too; then only operator new is counted.
#if defined(__GLIBC__) && !defined(LOCKSTEP_SANITIZED)
#define LOCKSTEP_COUNTS_MALLOC 1
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
}
#else
#define LOCKSTEP_COUNTS_MALLOC 0
#endif

namespace {

std::atomic<bool> counting = false;
std::atomic<long> allocations = 0;
std::atomic<long> allocations_of_onednn = 0;
std::atomic<const char*> first_caller = nullptr;  // the name of its library, for messages

void note(void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Dl_info where{};
  const bool known = dladdr(caller, &where) != 0 && where.dli_fname != nullptr;
  if (known && std::strstr(where.dli_fname, "libdnnl") != nullptr) {
    allocations_of_onednn.fetch_add(1);
    return;
  }
  const char* none = nullptr;
  first_caller.compare_exchange_strong(none, known ? where.dli_fname : "unknown");
  allocations.fetch_add(1);
}

void* aligned(std::size_t alignment, std::size_t bytes) {
#if LOCKSTEP_COUNTS_MALLOC
  return __libc_memalign(alignment, bytes);
#else
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
#endif
}

void* allocate(std::size_t bytes, std::size_t alignment, void* caller) {
  note(caller);
  void* memory = aligned(std::max(alignment, sizeof(void*)), std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Not inlined, because the compiler does not know that operator new uses malloc here.
[[gnu::noinline]] void release(void* memory) {
  std::free(memory);
}

}  // namespace

#if LOCKSTEP_COUNTS_MALLOC
extern "C" {
void* malloc(std::size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  note(__builtin_return_address(0));
  void* given = __libc_memalign(alignment, bytes);
  if (given == nullptr) return ENOMEM;
  *memory = given;
  return 0;
}
}
#endif

void* operator new(std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace lockstep::testing {
namespace {

template <class F>
long allocations_of(F&& f) {
  allocations = 0;
  allocations_of_onednn = 0;
  first_caller = nullptr;
  counting = true;
  f();
  counting = false;
  return allocations;
}

std::string who() {
  const char* caller = first_caller;
  return caller == nullptr ? "nobody" : caller;
}

struct Case {
  std::shared_ptr<Network> network;
  ValueType images;
  std::optional<DType> precision = {};
};

void expect_no_allocation(const Case& the_case) {
  const Loss loss = SparseCategoricalCrossentropy({.from_logits = true});
  const Optimizer optimizer = the_case.precision == DType::F16 ? Adam().with_loss_scale() : Adam();
  const Metric mean = LossMean("loss");
  const std::vector<Metric> metrics = {SparseCategoricalAccuracy()};
  Session session({});
  StepCache cache;
  const std::int64_t batch = the_case.images.shape[0];
  const Batch samples{.inputs = {Tensor(the_case.images.dtype, the_case.images.shape)},
                      .labels = Tensor(DType::I32, Shape{batch}),
                      .sample_weight = {}};
  CompiledStep& step =
      compile_step(cache, session,
                   {.network = *the_case.network,
                    .loss = loss,
                    .optimizer = optimizer,
                    .loss_mean = mean,
                    .metrics = metrics,
                    .weighted_metrics = {},
                    .seed = 1,
                    .precision = the_case.precision},
                   request_step(session.world(), optimizer, samples.step(StepMode::Train),
                                split_evenly(batch, session.world().size())));
  run_step(step, session, samples);  // threads start here
  run_step(step, session, samples);
  for (session.step = 2; session.step < 4; ++session.step) {
    EXPECT_EQ(allocations_of([&] { run_step(step, session, samples); }), 0) << who();
  }
  ::testing::Test::RecordProperty("allocations_of_onednn", static_cast<int>(allocations_of_onednn));
}

TEST(Allocation, TheCounterCounts) {
  std::vector<int>* volatile kept = nullptr;
  EXPECT_EQ(allocations_of([&] { kept = new std::vector<int>(100); }), 2);
  EXPECT_NE(who(), "nobody");
  delete kept;
}

#if LOCKSTEP_COUNTS_MALLOC
TEST(Allocation, TheCounterCountsMallocAndItsVariants) {
  void* volatile kept = nullptr;
  EXPECT_EQ(allocations_of([&] { kept = std::malloc(10); }), 1);
  EXPECT_EQ(allocations_of([&] { kept = std::realloc(kept, 5000); }), 1);
  std::free(kept);
  EXPECT_EQ(allocations_of([&] { kept = std::calloc(3, 7); }), 1);
  std::free(kept);
  EXPECT_EQ(allocations_of([&] { kept = std::aligned_alloc(64, 128); }), 1);
  std::free(kept);
  void* aligned = nullptr;
  EXPECT_EQ(allocations_of([&] { EXPECT_EQ(posix_memalign(&aligned, 64, 128), 0); }), 1);
  std::free(aligned);
}
#endif

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

TEST(Allocation, ATrainingStepInMixedPrecisionCallsNoAllocator) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    expect_no_allocation(
        {Network::sequential({Conv2D({.filters = 8, .padding = "same"}), BatchNormalization(),
                              Activation("relu"), MaxPooling2D(), Flatten(), Dense({.units = 10})}),
         {DType::F32, {4, 8, 8, 3}},
         dtype});
  }
}

TEST(Allocation, ATrainingStepWithADepthwiseConvolutionCallsNoAllocator) {
  expect_no_allocation(
      {Network::sequential({Conv2D({.filters = 8, .strides = 2, .padding = "same"}),
                            DepthwiseConv2D({.padding = "same"}), BatchNormalization(),
                            Activation("relu"), Conv2D({.filters = 16, .kernel_size = 1}),
                            MaxPooling2D(), Flatten(), Dense({.units = 10})}),
       {DType::F32, {4, 16, 16, 3}}});
}

}  // namespace
}  // namespace lockstep::testing
