// If memory runs out in a thread of the pipeline, next() throws an error that names the stage.
#include <gtest/gtest.h>

#include <new>

#include "data/positions.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {
namespace {

// A device whose memory is exhausted after the given number of blocks.
class SmallDevice final : public Device {
 public:
  explicit SmallDevice(int blocks) : blocks_(blocks) {}

  DeviceKind kind() const override { return DeviceKind::Cpu; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override { return host().make_stream(); }
  std::unique_ptr<Event> make_event(bool timed) override { return host().make_event(timed); }
  void make_current() override {}
  void pin_thread() override {}
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    host().copy(to, from, bytes);
  }
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override { return allocate(bytes); }

 private:
  std::byte* allocate_bytes(std::size_t bytes) override {
    if (blocks_-- <= 0) throw std::bad_alloc();
    return new std::byte[bytes]();
  }
  void free_bytes(std::byte* data, std::size_t) override { delete[] data; }

  std::string name_ = "small";
  std::atomic<int> blocks_;
};

std::string message_after(const Dataset& dataset, std::size_t elements,
                          const IteratorOptions& options = {}) {
  const auto iterator = dataset.iterator(options);
  EXPECT_EQ(rest_of(*iterator, elements).size(), elements);
  const std::string message = message_of<UsageError>([&] { iterator->next(); });
  // The iterator is at its end and repeats the error.
  EXPECT_EQ(message_of<UsageError>([&] { iterator->next(); }), message);
  return message;
}

Element without_memory(const Element& element) {
  if (element.front().item() == 5) throw std::bad_alloc();
  return element;
}

TEST(OutOfMemory, InAFunctionNamesItsStageOnAnyThread) {
  for (const int threads : {1, 3}) {
    for (const OnError on_error : {OnError::Raise, OnError::Skip}) {
      const Dataset mapped = Dataset::range(9).map(
          without_memory, {.parallel = threads, .on_error = on_error, .name = "decode"});
      for (const Dataset& dataset : {mapped, mapped.prefetch(2), mapped.batch(1).prefetch(1)}) {
        const std::string message = message_after(dataset.with_budget({.cores = 3}), 5);
        EXPECT_TRUE(contains(message, "[map decode] sample 5 of epoch 0: out of memory"))
            << message;
      }
    }
  }
}

// A device reports it as a UsageError; OnError::Skip skips those, but not this one.
TEST(OutOfMemory, OfADeviceIsNotADamagedSample) {
  const auto refused = [](const Element& element) {
    if (element.front().item() == 5) fail<MemoryError>("[device] cpu:0: 70 MiB were asked for");
    return element;
  };
  const MapOptions options{.on_error = OnError::Skip, .name = "decode"};
  const std::string expected =
      "[map decode] sample 5 of epoch 0: [device] cpu:0: 70 MiB were asked for";
  for (const int threads : {1, 3}) {
    MapOptions with = options;
    with.parallel = threads;
    const Dataset mapped = Dataset::range(9).map(refused, with);
    EXPECT_EQ(message_after(mapped.with_budget({.cores = 3}), 5), expected);
    EXPECT_EQ(message_after(mapped.prefetch(2), 5), expected);
  }
  const Predicate predicate = [&](const Element& element) { return !refused(element).empty(); };
  const Dataset filtered = Dataset::range(9).filter(predicate, {.on_error = OnError::Skip});
  EXPECT_TRUE(contains(message_after(filtered, 5), "[filter] sample 5 of epoch 0: [device]"));
}

TEST(OutOfMemory, InAGeneratorAndInAFilterNamesThem) {
  const Generator generator = [](std::uint64_t) {
    return [n = 0]() mutable -> std::optional<Element> {
      if (n == 2) throw std::bad_alloc();
      return Element{Tensor::scalar<std::int64_t>(n++)};
    };
  };
  const GeneratorOptions options{.spec = {{DType::I64, {}}}, .name = "ideas"};
  EXPECT_TRUE(contains(message_after(Dataset::from_generator(generator, options).prefetch(2), 2),
                       "[generator ideas]"));
  const Predicate predicate = [](const Element&) -> bool { throw std::bad_alloc(); };
  EXPECT_TRUE(contains(message_after(Dataset::range(3).filter(predicate), 0), "[filter]"));
}

// The memory for an element is requested by the thread that computes it.
TEST(OutOfMemory, ForTheRowsOfBatchesNamesTheStageThatWritesThem) {
  const WriteFunction write = [](const Element& element, RandomSequence&, std::span<Tensor> to) {
    to[0].copy_from(element[0]);
  };
  for (const int threads : {1, 3}) {
    const Dataset dataset =
        Dataset::range(40)
            .map_into(write, {.spec = {{DType::I64, {}}}, .parallel = threads, .name = "write"})
            .batch(4)
            .prefetch(2)
            .with_budget({.cores = 3});
    SmallDevice none(0);
    const std::string message = message_after(dataset, 0, {.memory = &none});
    EXPECT_TRUE(contains(message, "memory")) << message;
    EXPECT_TRUE(contains(message, "write") || contains(message, "batch")) << message;
    // Batches assembled before are still delivered; how many depends on the threads.
    SmallDevice some(3);
    const auto iterator = dataset.iterator({.memory = &some});
    std::vector<Element> held;
    EXPECT_THROW(
        {
          while (auto batch = iterator->next()) held.push_back(std::move(*batch));
        },
        UsageError);
    EXPECT_LE(held.size(), 3u);
  }
}

}  // namespace
}  // namespace lockstep
