// What the control plane reports ends the job, as a worker's own failure does.
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/cluster/launch/launch.h"

namespace lockstep::launch {
namespace {

// Reports a failure from a thread of its own as soon as the job has started.
class FailingControl final : public ControlPlane {
 public:
  FailingControl(const ControlRequest& request, ControlReport failure)
      : thread_([report = request.report, failure] { report(failure); }) {}
  ~FailingControl() override { thread_.join(); }
  std::string address() const override { return "127.0.0.1:1"; }

 private:
  std::thread thread_;
};

struct Shown {
  std::string out, err;
  Sinks sinks() {
    return {.out = [this](std::string_view text) { out += text; },
            .err = [this](std::string_view text) { err += text; }};
  }
};

LaunchOptions sleeping(int workers) {
  return {.seats = seat_workers(workers, {}),
          .program = {"sleep", "1000"},
          .folder = "/",
          .environment = {"PATH=/usr/bin:/bin"}};
}

TEST(Launch, AFailureThatTheControlPlaneReportsEndsTheJob) {
  LaunchOptions options = sleeping(3);
  options.start_control = [](const ControlRequest& request) {
    EXPECT_EQ(request.workers, 3);
    EXPECT_EQ(request.bind, "127.0.0.1");
    EXPECT_EQ(request.secret.size(), 64u);
    return std::make_unique<FailingControl>(
        request, ControlReport{.worker = 1, .message = "no sign of life for 10 s"});
  };
  Shown shown;
  const JobResult result = run_job(options, shown.sinks());
  EXPECT_EQ(result.first_failure, 1);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);  // what is silent would not hear anything else
  EXPECT_EQ(result.cause, "worker 1 on host localhost: no sign of life for 10 s");
  EXPECT_NE(shown.err.find("lockstep: " + result.cause + "\n"), std::string::npos) << shown.err;
  EXPECT_NE(shown.err.find("2 other workers ended after that"), std::string::npos) << shown.err;
}

TEST(Launch, AControlPlaneThatDoesNotStartStartsNoWorker) {
  LaunchOptions options = sleeping(1);
  options.start_control = [](const ControlRequest&) -> std::unique_ptr<ControlPlane> {
    fail<CommError>("no port is free");
  };
  Shown shown;
  EXPECT_THROW(run_job(options, shown.sinks()), CommError);
}

}  // namespace
}  // namespace lockstep::launch
