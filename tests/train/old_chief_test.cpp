// Checkpoints of a job whose members the embedded control plane keeps: a chief that is stopped
// between its commit and its renaming, and wakes up when another one has saved, changes nothing.
#include <gtest/gtest.h>

#include <future>

#include "cluster/control.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/strategy_impl.h"
#include "temporary_folder.h"
#include "train/member_strategy.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

class OldChief : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
    server_.emplace(server_options(2));
    workers_.emplace(server_->address(), 2);
  }
  // Checkpoints under one name, or under the name of their step and the newest under another.
  ModelCheckpointOptions options() const {
    if (!GetParam()) return {.path = newest().string()};
    return {.path = (folder_ / "at-{step}.safetensors").string(), .latest = newest().string()};
  }
  fs::path newest() const { return folder_ / "checkpoint.safetensors"; }
  void fit(Sequential& model, std::int64_t epochs) {
    model.fit(shuffled_batches(make_problem(64)),  // 4 steps
              {.epochs = epochs, .callbacks = {ModelCheckpoint(options())}});
  }
  std::string step_of_newest() const { return load_safetensors(newest()).metadata.at("step"); }

  TemporaryFolder folder_;
  std::optional<ControlServer> server_;
  std::optional<Workers> workers_;
};

TEST_P(OldChief, ThatWakesUpBetweenCommitAndRenamingChangesNothing) {
  Sequential model = model_of_member((*workers_)[0]);
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
  server_->new_generation({1});
  (*workers_)[1].rejoin(kHang);
  Sequential next = model_of_member((*workers_)[1]);
  fit(next, 2);
  EXPECT_EQ(step_of_newest(), "8");
  wake.set_value();
  const std::string error = old_chief.get();
  EXPECT_NE(error.find("a newer generation has taken over"), std::string::npos) << error;
  EXPECT_EQ(step_of_newest(), "8");
  EXPECT_EQ(load_safetensors(newest()).metadata.at("generation"), "2");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().string().find(".g"), std::string::npos) << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(UnderOneNameOrTwo, OldChief, ::testing::Bool());

}  // namespace
}  // namespace lockstep::testing
