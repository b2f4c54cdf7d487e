// The next pass over the data begins while training still uses the last batches of the current one.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "train/problem.h"

namespace lockstep {
namespace {

using testing::make_model;
using testing::make_problem;

constexpr std::int64_t kSamples = 160;
constexpr std::int64_t kBatch = 4;

// Notes whether samples of a later pass have been computed.
class Made {
 public:
  void add(std::uint64_t pass) {
    std::lock_guard lock(mutex_);
    if (pass > 0) later_ = true;
    changed_.notify_all();
  }
  // Whether samples of a later pass were computed; waits for them for a moment.
  bool later() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(50), [&] { return later_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool later_ = false;
};

TEST(NextPass, BeginsBeforeTheLastBatchesAreTrainedOn) {
  const auto data = make_problem(kSamples);
  Made made;
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y})
                              .map([&](const Element& element) {
                                made.add(element.sample.epoch);
                                return element;
                              })
                              .batch(kBatch)
                              .prefetch(kSamples / kBatch);
  bool early = false;
  const CallbackRef wait =
      LambdaCallback({.on_batch_end = [&](Model& model, std::int64_t, const BatchLogs&) {
        if (model.step() < kSamples / kBatch) early = early || made.later();
      }});
  Sequential model = make_model();
  model.compile({.optimizer = SGD({.learning_rate = 0.1f}),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  model.fit(batches, {.epochs = 2, .callbacks = {wait}});
  EXPECT_TRUE(early);
}

// A pass that was started early but is not used for training has no visible effect.
TEST(NextPass, IsDiscardedIfTrainingStops) {
  const auto data = make_problem(kSamples);
  const Dataset batches =
      Dataset::from_tensor_slices({data.x, data.y}).batch(kBatch).prefetch(kSamples / kBatch);
  const auto weights_after = [&](std::int64_t epochs, bool stops) {
    Sequential model = make_model();
    model.compile({.optimizer = SGD({.learning_rate = 0.1f}),
                   .loss = SparseCategoricalCrossentropy({.from_logits = true})});
    const CallbackRef stop =
        LambdaCallback({.on_epoch_end = [&](Model& stopped, std::int64_t, const Logs&) {
          if (stops) stopped.stop_training();
        }});
    const History history = model.fit(batches, {.epochs = epochs, .callbacks = {stop}});
    return std::pair(history.steps, model.evaluate(batches)["loss"]);
  };
  EXPECT_EQ(weights_after(3, true), weights_after(1, false));
}

}  // namespace
}  // namespace lockstep
