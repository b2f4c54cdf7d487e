// What a job beside etcd does besides failing at once: workers without progress are named, others
// may join, and a launcher hears of all that.
#include "cluster/etcd.h"
#include "lockstep/cluster/etcd/etcd_observer.h"

namespace lockstep {
namespace {

class EtcdGoingOn : public EtcdTest {
 protected:
  // Workers whose progress stands still: what each does.
  void start(std::vector<WorkerProgress> standing, OnFailure policy = OnFailure::Stop) {
    standing_ = std::move(standing);
    workers_ = std::make_unique<EtcdWorkers>(endpoints(), static_cast<int>(standing_.size()),
                                             [&](EtcdOptions& options) {
                                               options.progress_timeout = milliseconds(400);
                                               options.on_failure = policy;
                                             });
    for (int i = 0; i < static_cast<int>(standing_.size()); ++i) {
      (*workers_)[i].on_heartbeat([this, i] {
        if (i == moving_) return WorkerProgress{.step = ++step_};
        return standing_[static_cast<std::size_t>(i)];
      });
    }
  }
  void TearDown() override {
    for (int i = 0; workers_ && i < static_cast<int>(standing_.size()); ++i) {
      (*workers_)[i].on_heartbeat({});
    }
  }

  std::vector<WorkerProgress> standing_;
  int moving_ = -1;  // a worker that does make progress
  std::atomic<std::uint64_t> step_ = 0;
  std::unique_ptr<EtcdWorkers> workers_;
};

TEST_F(EtcdGoingOn, AWorkerWithoutProgressIsNamedByThoseWhoWaitForIt) {
  start({{.step = 8, .waiting = true, .waiting_for = 1},
         {.step = 7, .activity = "step 7"},
         {.step = 8, .waiting = true}});
  for (int i = 0; i < 3; ++i) {
    const Failure failure = workers_->failures(i).wait();
    EXPECT_EQ(failure.rank, 1);
    expect_contains(failure.message, {"worker 1 (host:pid 1) has made no progress after step 7",
                                      "it was last in \"step 7\"", "worker 0, worker 2"});
  }
}

TEST_F(EtcdGoingOn, TwoWorkersThatWaitForOneAnotherAreNamed) {
  start({{.waiting = true, .waiting_for = 1}, {.waiting = true, .waiting_for = 0}});
  for (int i = 0; i < 2; ++i) {
    expect_contains(workers_->failures(i).wait().message,
                    {"waits for worker 1", "waits for worker 0", "reach etcd"});
  }
}

TEST_F(EtcdGoingOn, AWorkerThatMakesProgressIsNotNamed) {
  moving_ = 1;
  start({{.step = 8, .waiting = true}, {}});
  const EtcdKeys keys(job_of_test());
  while (!servers->has(keys.still((*workers_)[0].generation(), 0))) std::this_thread::yield();
  const std::uint64_t then = step_;
  while (step_ < then + 20)
    std::this_thread::yield();  // of which each takes an eighth of the limit
  for (int i = 0; i < 2; ++i) EXPECT_EQ(workers_->failures(i).size(), 0u);
  EXPECT_FALSE(servers->has(keys.still((*workers_)[1].generation(), 1)));
}

TEST_F(EtcdGoingOn, NewcomersAreAdmittedWhenTheFirstWorkerSaysSo) {
  EtcdWorkers workers(endpoints(), 2,
                      [](EtcdOptions& options) { options.on_failure = OnFailure::Shrink; });
  EXPECT_FALSE(workers[0].came_later());
  std::unique_ptr<EtcdMembership> third;
  std::thread joining([&] {
    EtcdOptions options = etcd_options(endpoints(), 2, 3);
    options.on_failure = OnFailure::Shrink;
    third = std::make_unique<EtcdMembership>(options);
  });
  while (workers[0].newcomers() == 0) std::this_thread::yield();
  workers[0].admit();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(workers.failures(i).wait().rank, -1);
    EXPECT_TRUE(workers[i].goes_on());
  }
  on_threads(2, [&](int i) { workers[i].rejoin(kHang); });
  joining.join();
  EXPECT_EQ(third->worker(), 2);
  EXPECT_TRUE(third->came_later());
  EXPECT_EQ(third->workers(), 3);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(workers[i].worker(), i);
    EXPECT_EQ(workers[i].workers(), 3);
    EXPECT_EQ(workers[i].newcomers(), 0);
  }
}

TEST_F(EtcdGoingOn, ALauncherHearsWhoJoinedWhoFailedAndHow) {
  Events events;
  const EtcdObserver observer({.endpoints = endpoints(),
                               .job = job_of_test(),
                               .on_failure = OnFailure::Restart,
                               .on_event = [&](const ControlEvent& event) { events.put(event); }});
  start({{.step = 8, .waiting = true}, {.step = 7}}, OnFailure::Restart);
  for (const int seat : {0, 1}) {
    events.wait([&](const ControlEvent& event) {
      return event.kind == ControlEventKind::Joined && event.seat == seat;
    });
  }
  const ControlEvent failed =
      events.wait([](const ControlEvent& event) { return event.kind == ControlEventKind::Failed; });
  EXPECT_EQ(failed.seat, 1);
  EXPECT_EQ(failed.cause, FailureCause::Stuck);
  EXPECT_TRUE(failed.goes_on);
}

// What a job of this name left behind is not told to the launcher of the next.
TEST_F(EtcdGoingOn, ALauncherHearsNothingOfTheRunBefore) {
  {
    EtcdWorkers before(endpoints(), 2);
    before[0].report_failure({.rank = 0, .kind = FailureKind::Data, .message = "of before"});
    before.failures(1).wait();
  }
  Events events;
  const EtcdObserver observer({.endpoints = endpoints(),
                               .job = job_of_test(),
                               .on_event = [&](const ControlEvent& event) { events.put(event); }});
  EtcdWorkers workers(endpoints(), 2);
  workers[0].report_failure({.rank = 0, .kind = FailureKind::Data, .message = "of now"});
  const ControlEvent failed =
      events.wait([](const ControlEvent& event) { return event.kind == ControlEventKind::Failed; });
  EXPECT_EQ(failed.text, "of now");
  EXPECT_EQ(failed.cause, FailureCause::Reported);
}

}  // namespace
}  // namespace lockstep
