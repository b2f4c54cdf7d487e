// Plans of a rank share one arena: how large it is, and that results do not depend on it, on the
// CPU and on an asynchronous device.
#include "lockstep/exec/rank_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "late_device.h"
#include "lockstep/device/memory_error.h"
#include "lockstep/exec/executor.h"
#include "lockstep/graph/ops/ops.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

using testing::LateDevice;

// y = exp(exp(-x) + w) · w, with some intermediate values in the arena; loss = its sum.
Graph chain(const VariableRef& weight, std::int64_t rows) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{rows, 16}});
  const Value w = graph.variable(weight);
  const Value hidden = exp(neg(x));
  const Value y = exp(neg(hidden + w)) * w + hidden;
  graph.output("y", y + 0.5);
  graph.output("loss", reduce_sum(y));
  return graph;
}

Tensor samples(std::int64_t rows, float first) {
  Tensor x(DType::F32, Shape{rows, 16});
  const auto values = x.values<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = first + 0.01f * static_cast<float>(i % 97);
  }
  return x;
}

class RankMemoryOn : public ::testing::TestWithParam<const char*> {
 protected:
  RankMemoryOn() {
    if (std::string(GetParam()) == "cpu") {
      device_ = std::make_unique<CpuDevice>(0, std::vector{available_cores().front()});
    } else {
      device_ = std::make_unique<LateDevice>();
    }
    state_ = std::make_unique<State>(*device_, 1);
    state_->add(weight_);
    Tensor w(DType::F32, Shape{16});
    std::iota(w.values<float>().begin(), w.values<float>().end(), 1.0f);
    state_->set(*weight_, w);
  }

  std::unique_ptr<Executor> make(std::int64_t rows) {
    return std::make_unique<Executor>(make_plan(chain(weight_, rows), cpu_kernels()), cpu_kernels(),
                                      *state_);
  }
  static void feed(Executor& executor, const Tensor& x) {
    executor.await_inputs();
    executor.input("x").copy_from(x);
  }
  // The result of an executor that is alone.
  static Tensor alone(const VariableRef& weight, const Tensor& w, const Tensor& x) {
    State state(host(), 1);
    Executor executor(make_plan(chain(weight, x.shape()[0]), cpu_kernels()), cpu_kernels(), state);
    state.set(*weight, w);
    feed(executor, x);
    executor.run();
    return on_host(executor.output("y"));
  }
  Tensor expected(const Tensor& x) { return alone(weight_, state_->get(*weight_), x); }

  // What a plan has on the device apart from the arena: inputs and outputs, or the staging buffers
  // of inputs and a word for faults.
  std::size_t own_bytes(const Plan& plan) const {
    const PlanBytes bytes = bytes_on(*device_, plan);
    if (device_->shares_host_memory()) return bytes.input_output;  // the graph has the constants
    return bytes.input_output + bytes.constants + sizeof(Fault);
  }
  std::size_t arena_bytes(const Plan& plan) const { return bytes_on(*device_, plan).arena; }

  VariableRef weight_ = zero_variable("weight", Shape{16});
  std::unique_ptr<Device> device_;
  std::unique_ptr<State> state_;
};

TEST_P(RankMemoryOn, TheArenaIsThatOfTheLargestPlanAndWhatIsReportedIsAllocated) {
  const std::size_t variables = state_->bytes();
  EXPECT_EQ(state_->resident_bytes(), variables);
  std::vector<std::unique_ptr<Executor>> executors;
  std::size_t own = 0;
  std::size_t largest = 0;
  for (const std::int64_t rows : {64, 5, 128, 32}) {
    executors.push_back(make(rows));
    const Plan& plan = executors.back()->plan();
    EXPECT_GT(plan.arena_bytes, 0u);
    own += own_bytes(plan);
    largest = std::max(largest, arena_bytes(plan));
    EXPECT_EQ(state_->resident_bytes(), variables + largest + own) << rows;
    EXPECT_EQ(state_->resident_bytes(), device_->bytes_in_use()) << rows;
  }
  for (auto& executor : executors) executor->run();
  EXPECT_EQ(state_->resident_bytes(), variables + largest + own);
  // An executor frees only its own memory, which is small; the arena stays.
  executors.clear();
  EXPECT_EQ(state_->resident_bytes(), variables + largest);
  EXPECT_EQ(state_->resident_bytes(), device_->bytes_in_use());
  state_.reset();
  EXPECT_EQ(device_->bytes_in_use(), 0u);
}

TEST_P(RankMemoryOn, ALargerPlanThatComesLaterChangesNoBit) {
  const Tensor few = samples(8, 0.1f);
  const Tensor many = samples(300, 0.3f);
  auto small = make(8);
  Tensor input = small->input("x");
  const Tensor output = small->output("y");
  input.copy_from(few);
  small->run();
  small->wait();
  EXPECT_TRUE(output.same_bits(expected(few)));
  auto large = make(300);
  feed(*large, many);
  large->run();
  large->wait();
  EXPECT_TRUE(large->output("y").same_bits(expected(many)));
  // Inputs and outputs of the first have not moved, and their contents are unchanged.
  EXPECT_TRUE(output.same_bits(expected(few)));
  EXPECT_TRUE(input.same_bits(few));
  for (const float first : {0.2f, 0.4f}) {
    small->await_inputs();
    input.copy_from(samples(8, first));
    small->run();
    small->wait();
    EXPECT_TRUE(output.same_bits(expected(samples(8, first))));
    large->run();
    large->wait();
    EXPECT_TRUE(large->output("y").same_bits(expected(many)));
  }
}

TEST_P(RankMemoryOn, ARunWithTheInputsOfBeforeReadsThemAlsoWhenAnotherPlanRanInBetween) {
  auto one = make(8);
  auto other = make(9);
  feed(*one, samples(8, 0.1f));
  one->run();
  feed(*other, samples(9, 0.7f));
  other->run();
  one->run(Inputs::AsBefore);
  one->wait();
  EXPECT_TRUE(one->output("y").same_bits(expected(samples(8, 0.1f))));
  auto larger = make(100);
  one->run(Inputs::AsBefore);
  other->run(Inputs::AsBefore);
  one->run(Inputs::AsBefore);
  one->wait();
  other->wait();
  EXPECT_TRUE(one->output("y").same_bits(expected(samples(8, 0.1f))));
  EXPECT_TRUE(other->output("y").same_bits(expected(samples(9, 0.7f))));
}

TEST_P(RankMemoryOn, ExecutorsInFlightAtTheSameTimeKeepTheirOwnResults) {
  auto one = make(8);
  auto other = make(40);
  const auto issue = [](Executor& executor, const Tensor& x) {
    feed(executor, x);
    executor.run();
    return executor.runs();
  };
  for (int round = 0; round < 3; ++round) {
    const float first = 0.1f * static_cast<float>(round);
    const Tensor few = samples(8, first);
    const Tensor many = samples(40, first + 0.5f);
    issue(*one, few);
    issue(*other, many);
    if (round == 1) make(200);  // while both are in flight
    const Tensor next = samples(8, first + 0.05f);
    issue(*one, next);
    other->wait();
    one->wait();
    EXPECT_TRUE(other->output("y").same_bits(expected(many)));
    EXPECT_TRUE(one->output("y").same_bits(expected(next)));
  }
}

TEST_P(RankMemoryOn, WhatIsMeasuredInBetweenFollowsTheArenaToo) {
  auto one = make(8);
  feed(*one, samples(8, 0.1f));
  one->run();
  auto larger = make(100);
  feed(*larger, samples(100, 0.2f));
  larger->run();
  const std::size_t timed = device_->shares_host_memory() ? 0 : one->plan().instructions.size();
  EXPECT_EQ(one->profile().size(), timed);
  one->run(Inputs::AsBefore);
  larger->run(Inputs::AsBefore);
  one->wait();
  larger->wait();
  EXPECT_TRUE(one->output("y").same_bits(expected(samples(8, 0.1f))));
  EXPECT_TRUE(larger->output("y").same_bits(expected(samples(100, 0.2f))));
}

INSTANTIATE_TEST_SUITE_P(Devices, RankMemoryOn, ::testing::Values("cpu", "late"),
                         [](const auto& name) { return std::string(name.param); });

// A device with a fixed amount of memory.
class SmallDevice final : public Device {
 public:
  explicit SmallDevice(std::size_t most) : most_(most) {}
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
    if (bytes_in_use() + bytes > most_) fail<MemoryError>("[device] small: no {} bytes", bytes);
    return static_cast<std::byte*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64));
  }
  void free_bytes(std::byte* data, std::size_t) override { std::free(data); }

  std::string name_ = "small";
  std::size_t most_;
};

TEST(RankMemory, TheOldArenaIsGivenBackBeforeALargerOneIsTaken) {
  SmallDevice device(1000);
  RankMemory memory(device);
  memory.reserve_arena(600);
  const std::uint64_t generation = memory.arena_generation();
  memory.reserve_arena(500);
  EXPECT_EQ(memory.arena_generation(), generation);
  memory.reserve_arena(900);
  EXPECT_NE(memory.arena_generation(), generation);
  EXPECT_EQ(memory.resident_bytes(), 900u);
}

TEST(RankMemory, APlanThatDoesNotFitLeavesThoseBeforeItAble) {
  SmallDevice device(20'000);
  const VariableRef weight = zero_variable("weight", Shape{16});
  State state(device, 1);
  const auto make = [&](std::int64_t rows) {
    return Executor(make_plan(chain(weight, rows), cpu_kernels()), cpu_kernels(), state);
  };
  Executor small = make(8);
  small.input("x").copy_from(samples(8, 0.1f));
  small.run();
  const Tensor before = on_host(small.output("y"));
  EXPECT_THROW(make(1000), MemoryError);
  small.run();
  EXPECT_TRUE(small.output("y").same_bits(before));
}

}  // namespace
}  // namespace lockstep
