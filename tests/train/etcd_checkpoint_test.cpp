// Checkpoints of a job whose members are kept in a real etcd: a chief that was taken for dead and
// wakes up writes nothing that is ever loaded.
#include <gtest/gtest.h>

#include <future>

#include "cluster/etcd.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/strategy_impl.h"
#include "train/member_strategy.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

class EtcdCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_program()) GTEST_SKIP() << "there is no etcd";
    servers_.emplace(1);
    for (int i = 0; i < 2; ++i) {
      joining_.push_back(std::async(std::launch::async, [this, i] {
        return std::make_unique<EtcdMembership>(
            EtcdOptions{.endpoints = servers_->endpoints(), .worker = i, .workers = 2});
      }));
    }
    old_ = joining_[0].get();
    next_ = joining_[1].get();
  }
  History fit(Sequential& model, std::int64_t epochs, const fs::path& resume = {}) {
    return model.fit(shuffled_batches(make_problem(64)),  // 4 steps
                     {.epochs = epochs,
                      .callbacks = {ModelCheckpoint({.path = file().string()})},
                      .resume = resume});
  }
  fs::path file() const { return folder_ / "checkpoint.safetensors"; }
  static std::string step_in(const fs::path& file) {
    return load_safetensors(file).metadata.at("step");
  }
  // The second worker goes on alone.
  void begin_next_generation() { next_->rejoin({1}, std::chrono::minutes(2)); }

  TemporaryFolder folder_;
  std::optional<EtcdServers> servers_;
  std::vector<std::future<std::unique_ptr<EtcdMembership>>> joining_;
  std::unique_ptr<EtcdMembership> old_;
  std::unique_ptr<EtcdMembership> next_;
};

TEST_F(EtcdCheckpoint, WhatAnOldChiefWritesIsRefusedAndRemoved) {
  Sequential model = model_of_member(*old_);
  fit(model, 1);
  EXPECT_EQ(step_in(file()), "4");
  EXPECT_EQ(load_safetensors(file()).metadata.at("generation"), "1");
  begin_next_generation();
  const std::string message = message_of<CommError>([&] { fit(model, 1); });
  EXPECT_NE(message.find("generation"), std::string::npos) << message;
  EXPECT_EQ(step_in(file()), "4");
  EXPECT_EQ(folder_.files(), 2u) << "the checkpoint, and its name with the generation";

  Sequential resumed = model_of_member(*next_);
  fit(resumed, 2, file());
  EXPECT_EQ(step_in(file()), "8");
  EXPECT_EQ(load_safetensors(file()).metadata.at("generation"), "2");
  EXPECT_EQ(folder_.files(), 2u);
}

// The old chief sleeps between the commit and the renaming, and wakes up when another one has
// committed later steps.
TEST_F(EtcdCheckpoint, AnOldChiefThatWakesUpAfterItsCommitChangesNothing) {
  Sequential model = model_of_member(*old_);
  std::promise<void> asleep;
  std::promise<void> wake;
  impl_of(model).on_write_stage = [&](std::string_view stage) {
    if (stage != "publish") return;
    asleep.set_value();
    wake.get_future().wait();
  };
  std::future<std::string> old_chief =
      std::async(std::launch::async, [&] { return message_of<Error>([&] { fit(model, 1); }); });
  asleep.get_future().wait();
  begin_next_generation();
  Sequential resumed = model_of_member(*next_);
  EXPECT_EQ(fit(resumed, 2, file()).steps, 4) << "from the step that was committed";
  EXPECT_EQ(step_in(file()), "8");
  wake.set_value();
  EXPECT_NE(old_chief.get(), "no exception");
  EXPECT_EQ(step_in(file()), "8");
}

TEST_F(EtcdCheckpoint, WhatWasCommittedIsLoadedWhateverHasItsName) {
  Sequential model = model_of_member(*old_);
  fit(model, 1);
  const fs::path stale = folder_ / "stale";
  fs::copy_file(file(), stale);
  fit(model, 1);
  EXPECT_EQ(step_in(file()), "8");
  fs::rename(stale, file());  // as if an old chief had done it
  Sequential resumed = model_of_member(*next_);
  resumed.load(file());
  EXPECT_EQ(resumed.step(), 8);
  // Where only the stale one is left, it is not taken for the committed one.
  fs::remove(folder_ / "checkpoint.g1-s8.safetensors");
  const std::string message = message_of<DataError>([&] { resumed.load(file()); });
  EXPECT_NE(message.find("checkpoint.g1-s8.safetensors, of step 8 and generation 1"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace lockstep::testing
