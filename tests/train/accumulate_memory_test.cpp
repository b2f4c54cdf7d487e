// What a step of several micro-batches needs: the memory of one, the collectives of one step; and
// how many fit.
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/device/memory_error.h"
#include "lockstep/distribute/schedule.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/step_memory.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

// What a step is planned and compiled with, beside a model.
struct AccumulatedStep {
  AccumulatedStep() : network(accumulate_network()) {}
  static std::shared_ptr<Network> accumulate_network() {
    return Network::sequential({Conv2D({.filters = 16, .padding = "same", .activation = "relu"}),
                                Conv2D({.filters = 16, .padding = "same", .activation = "relu"}),
                                GlobalAveragePooling2D(), Dense({.units = 4})});
  }
  StepRecipe recipe() {
    return {.network = *network,
            .loss = loss,
            .optimizer = optimizer,
            .loss_mean = mean,
            .metrics = {},
            .weighted_metrics = {},
            .accumulators = &accumulators};
  }
  static ModelStep types(std::int64_t batch) {
    return {.mode = StepMode::Train,
            .inputs = {{DType::F32, {batch, 12, 12, 1}}},
            .labels = {DType::I32, Shape{batch}}};
  }
  StepRequest request(const World& world, std::int64_t batch, std::int64_t accumulate) const {
    return request_step(world, optimizer, types(batch), split_evenly(batch, world.size()),
                        accumulate);
  }

  std::shared_ptr<Network> network;
  Loss loss = SparseCategoricalCrossentropy({.from_logits = true});
  Optimizer optimizer = Adam();
  Metric mean = LossMean("loss");
  Accumulators accumulators;
};

TEST(AccumulateMemory, IsThatOfAMicroBatchAndWhatIsPlannedIsAllocated) {
  std::vector<std::size_t> arenas;
  for (const std::int64_t accumulate : {1, 4}) {
    for (const std::int64_t batch : {64, 63}) {  // 16 each; 16, 16, 16 and 15
      CpuDevice device(0, {available_cores().front()});
      AccumulatedStep step;
      Session session({.device = &device, .kernels = &cpu_kernels()});
      const StepRequest request = step.request(session.world(), batch, accumulate);
      const StepPlans plans = plan_step(session, step.recipe(), request);
      EXPECT_EQ(device.bytes_in_use(), 0u);
      const PlanBytes planned = plans.bytes_on(device, 0);
      StepCache cache;
      compile_step(cache, session, step.recipe(), request);
      EXPECT_EQ(session.resident_bytes(), device.bytes_in_use());
      // Every block is rounded up to the alignment of memory.
      EXPECT_GE(session.resident_bytes(), planned.total() - planned.constants);
      EXPECT_LE(session.resident_bytes(), planned.total() + 64 * 64);
      arenas.push_back(planned.arena);
      std::size_t parameters = 0;
      for (const VariableRef& variable : step.network->trainable_variables()) {
        parameters +=
            size_of(variable->dtype) * static_cast<std::size_t>(variable->shape.elements());
      }
      if (accumulate == 1) {
        EXPECT_EQ(plans.accumulator_bytes(0), 0u);
      } else {
        EXPECT_GE(plans.accumulator_bytes(0), parameters);
        EXPECT_LE(plans.accumulator_bytes(0), parameters + 16);  // the weight, and the loss
      }
    }
  }
  EXPECT_LT(arenas[2], arenas[0] / 3);
  EXPECT_LT(arenas[3], arenas[1] / 3);
}

TEST(AccumulateMemory, OfManyMicroBatchesIsThatOfTwo) {
  AccumulatedStep step;
  Session session({.kernels = &cpu_kernels()});
  const StepPlans two = plan_step(session, step.recipe(), step.request(session.world(), 16, 2));
  const StepPlans sixteen =
      plan_step(session, step.recipe(), step.request(session.world(), 128, 16));
  EXPECT_EQ(two.bytes_on(session.device(), 0).total(),
            sixteen.bytes_on(session.device(), 0).total());
  EXPECT_EQ(sixteen.turns.size(), 15u);
  EXPECT_EQ(sixteen.kinds.size(), 1u);
}

// The form Add has no collective, and the form Last those of a step without accumulation.
TEST(AccumulateTraffic, IsThatOfOneStep) {
  AccumulatedStep step;
  const Strategy strategy = mirrored(2);
  Session session({.world = impl_of(strategy).world});
  const StepPlans whole = plan_step(session, step.recipe(), step.request(session.world(), 32, 1));
  const StepPlans divided = plan_step(session, step.recipe(), step.request(session.world(), 32, 4));
  ASSERT_EQ(divided.kinds.size(), 1u);
  for (const int rank : {0, 1}) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(describe_schedule(divided.kinds[0][r].graph), "");
    EXPECT_EQ(describe_schedule(divided.step[r].graph), describe_schedule(whole.step[r].graph));
    EXPECT_NE(describe_schedule(whole.step[r].graph), "");
  }
}

TEST(AccumulateAuto, FindsTheLargestMicroBatchThatFitsFromThePlanAlone) {
  CpuDevice device(0, {available_cores().front()});
  AccumulatedStep step;
  Session session({.device = &device, .kernels = &cpu_kernels()});
  const std::vector<Piece> pieces = split_evenly(60, 1);
  const auto needed = [&](std::int64_t accumulate) {
    return plan_step(session, step.recipe(), step.request(session.world(), 60, accumulate))
        .bytes_on(device, 0)
        .total();
  };
  const auto largest = [&](std::size_t limit) {
    return largest_micro_batch(session, step.recipe(), AccumulatedStep::types(60), pieces,
                               {.limit = limit});
  };
  EXPECT_EQ(largest(needed(1)), 60);
  EXPECT_EQ(largest(needed(1) - 1), 30);
  EXPECT_EQ(largest(needed(4)), 15);
  EXPECT_LT(largest(needed(4) - 1), 15);
  EXPECT_EQ(largest(needed(60)), 1);
  EXPECT_EQ(micro_batches_of(pieces, 15), 4);
  const std::string message = message_of<MemoryError>([&] { largest(needed(60) - 1); });
  EXPECT_NE(message.find("even with one sample per micro-batch"), std::string::npos) << message;
  EXPECT_EQ(device.bytes_in_use(), 0u);
}

TEST(AccumulateAuto, TrainsOnTheWholeBatchWhereItFitsAndSaysSo) {
  const Problem data = make_problem(32);
  Sequential model = make_model();
  CompileOptions options = with_adam();
  options.accumulate = 0;
  model.compile(options);
  const History history = model.fit(shuffled_batches(data), {.epochs = 1});
  EXPECT_EQ(history.micro_batches, 1);
  const std::vector<std::string> remarks = model.remarks();
  EXPECT_TRUE(std::ranges::any_of(remarks, [](const std::string& remark) {
    return remark.find("the whole batch fits") != std::string::npos;
  }));
}

}  // namespace
}  // namespace lockstep::testing
