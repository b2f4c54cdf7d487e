// Endless data, unbatched data, and batches that do not fit into memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/memory_error.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

Dataset batches_of(const Problem& data, std::int64_t size) {
  return Dataset::from_tensor_slices({data.x, data.y}).batch(size);
}

Sequential compiled_model() {
  Sequential model = make_model();
  model.compile(with_adam());
  return model;
}

TEST(Endless, DataWithoutANumberOfStepsIsRefusedWithTheMissingOption) {
  const Dataset batches = batches_of(make_problem(32), 8);
  const Dataset endless = batches.repeat();
  Sequential model = compiled_model();
  const auto expect = [](const std::string& message, const char* option) {
    EXPECT_NE(message.find("never ends"), std::string::npos) << message;
    EXPECT_NE(message.find(option), std::string::npos) << message;
  };
  expect(message_of<UsageError>([&] { model.fit(endless); }), ".steps_per_epoch = n");
  expect(message_of<UsageError>([&] { model.fit(endless.prefetch()); }), ".steps_per_epoch = n");
  expect(message_of<UsageError>([&] { model.fit(batches, {.validation_data = endless}); }),
         ".validation_steps = n");
  expect(message_of<UsageError>([&] { model.evaluate(endless); }), ".steps = n");
  expect(message_of<UsageError>([&] { model.predict(endless); }), ".steps = n");
  EXPECT_EQ(model.step(), 0);

  EXPECT_EQ(model
                .fit(endless, {.epochs = 2,
                               .validation_data = endless,
                               .steps_per_epoch = 3,
                               .validation_steps = 2})
                .steps,
            6);
  EXPECT_GT(model.evaluate(endless, {.steps = 2})["loss"], 0.0);
  EXPECT_EQ(model.predict(endless, {.steps = 2}).shape()[0], 16);
}

TEST(Endless, DataOfUnknownLengthIsReadToItsEnd) {
  Sequential model = compiled_model();
  const Dataset some = batches_of(make_problem(32), 8).filter([](const Element&) { return true; });
  EXPECT_EQ(some.cardinality(), std::nullopt);
  EXPECT_EQ(model.fit(some, {.validation_data = some}).steps, 4);
}

TEST(Unbatched, DataSaysToCallBatch) {
  const Problem data = make_problem(32);
  const Dataset samples = Dataset::from_tensor_slices({data.x, data.y});
  Sequential model = compiled_model();
  const auto expect = [](const std::string& message, const char* caller) {
    EXPECT_NE(message.find(".batch(n)"), std::string::npos) << message;
    EXPECT_NE(message.find(caller), std::string::npos) << message;
  };
  expect(message_of<UsageError>([&] { model.fit(samples); }), "[fit]");
  const Dataset one_hot = Dataset::from_tensor_slices({data.x, Tensor(DType::F32, {32, kClasses})});
  expect(message_of<UsageError>([&] { model.fit(one_hot); }), "[fit]");
  model.fit(samples.batch(8));
  expect(message_of<UsageError>([&] { model.fit(samples.batch(8), {.validation_data = samples}); }),
         "[validation]");
  expect(message_of<UsageError>([&] { model.evaluate(samples); }), "[evaluate]");
  expect(message_of<UsageError>([&] { model.predict(Dataset::from_tensor_slices({data.x})); }),
         "[predict]");
}

// A CPU that only allocates blocks up to a size.
class SmallDevice final : public Device {
 public:
  explicit SmallDevice(std::size_t most) : most_(most) {}

  DeviceKind kind() const override { return DeviceKind::Cpu; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override { return core_.make_stream(); }
  std::unique_ptr<Event> make_event(bool timed) override { return core_.make_event(timed); }
  void make_current() override { core_.make_current(); }
  void pin_thread() override { core_.pin_thread(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    core_.copy(to, from, bytes);
  }
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override {
    return core_.allocate_host(bytes);
  }
  int refused() const { return refused_; }

 protected:
  std::byte* allocate_bytes(std::size_t bytes) override {
    if (bytes > most_) {
      ++refused_;
      fail<MemoryError>("[device] {}: {} bytes asked for, {} free", name_, bytes, most_);
    }
    const std::size_t whole = (bytes + 64) / 64 * 64;
    void* data = std::aligned_alloc(64, whole);
    std::memset(data, 0, whole);
    return static_cast<std::byte*>(data);
  }
  void free_bytes(std::byte* data, std::size_t) override { std::free(data); }

 private:
  std::string name_ = "small";
  std::size_t most_;
  int refused_ = 0;
  CpuDevice core_{0, {available_cores().front()}};
};

TEST(BatchesThatFit, ValidationBatchesThatDoNotFitAreSplitWithExactResults) {
  const Problem data = make_problem(32);
  const Problem more = make_problem(1000, 4);
  const auto fit = [&](Device& device) {
    Sequential model({Dense({.units = 256, .activation = "relu"}), Dense({.units = kClasses})});
    CompileOptions options = with_adam();
    options.device = &device;
    model.compile(options);
    const History history =
        model.fit(batches_of(data, 8), {.epochs = 2, .validation_data = batches_of(more, 600)});
    return std::pair(history.series("val_loss"), model.predict(batches_of(more, 600)));
  };
  SmallDevice large(std::size_t{1} << 30);
  SmallDevice small(200'000);  // a layer's output for 600 samples takes three times that
  const auto [expected, whole] = fit(large);
  const auto [losses, parts] = fit(small);
  EXPECT_EQ(large.refused(), 0);
  EXPECT_GT(small.refused(), 0);
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5);
  ASSERT_EQ(parts.shape(), whole.shape());
  for (std::size_t i = 0; i < parts.values<float>().size(); ++i) {
    EXPECT_NEAR(parts.values<float>()[i], whole.values<float>()[i], 1e-4);
  }
}

TEST(BatchesThatFit, ASampleThatDoesNotFitIsAnError) {
  SmallDevice device(20'000);
  Sequential model({Dense({.units = 2000}), Dense({.units = kClasses})});
  CompileOptions options = with_adam();
  options.device = &device;
  model.compile(options);
  const Problem data = make_problem(8);
  EXPECT_THROW(model.evaluate(batches_of(data, 8)), UsageError);
}

TEST(BatchesThatFit, ExhaustingHostMemoryIsAnErrorNotACrash) {
  CpuDevice device(0, {available_cores().front()});
  const std::string message =
      message_of<MemoryError>([&] { device.allocate(std::size_t{1} << 45); });
  EXPECT_NE(message.find("MiB"), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::testing
