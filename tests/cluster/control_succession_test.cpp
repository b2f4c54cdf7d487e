// What the control server does after a failure, by the job's policy.
#include "cluster/control_state.h"

namespace lockstep {
namespace {

class Succession : public ControlStateOf {
 protected:
  // The failure that a worker is told.
  control::FailureNotice failure_of(Id id) { return next(id).failure(); }
  // The place in the generation that it is told.
  control::Members place_of(Id id) {
    for (auto& messages = inbox[id]; !messages.empty();) {
      const ToWorker message = next(id);
      if (message.has_members()) return message.members();
    }
    ADD_FAILURE() << "session " << id << " is no member";
    return {};
  }
  void end(Id id) {
    state->disconnect(id, now);
    collect();
  }
  std::vector<ControlEvent> failures() {
    std::vector<ControlEvent> found;
    for (const ControlEvent& event : state->take_events()) {
      if (event.kind == ControlEventKind::Failed || event.kind == ControlEventKind::Lost) {
        found.push_back(event);
      }
    }
    return found;
  }
};

TEST_F(Succession, WithRestartTheOthersWaitForANewcomerInItsPlace) {
  on_failure = OnFailure::Restart;
  form(3);
  end(members[1]);
  const std::vector<ControlEvent> events = failures();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].goes_on);
  EXPECT_EQ(events[0].seat, 1);
  EXPECT_EQ(state->generation(), 2u);
  for (const Id id : {members[0], members[2]}) {
    EXPECT_TRUE(failure_of(id).goes_on());
    rejoin(id, 1);
    EXPECT_TRUE(inbox[id].empty());
  }
  const Id newcomer = join(1);
  EXPECT_EQ(place_of(members[0]).worker(), 0u);
  EXPECT_EQ(place_of(members[2]).worker(), 2u);
  EXPECT_EQ(place_of(newcomer).worker(), 1u);
  EXPECT_FALSE(state->failure());
}

TEST_F(Succession, WithShrinkTheOthersGoOnAndAreNumberedAnew) {
  on_failure = OnFailure::Shrink;
  form(3);
  end(members[0]);
  for (const Id id : {members[1], members[2]}) {
    EXPECT_TRUE(failure_of(id).goes_on());
    rejoin(id, 1);
  }
  EXPECT_EQ(place_of(members[1]).worker(), 0u);
  const control::Members last = place_of(members[2]);
  EXPECT_EQ(last.worker(), 1u);
  EXPECT_EQ(last.members_size(), 2);
  // The next failure is told with the number that its worker was started with.
  state->take_events();
  end(members[2]);
  const std::vector<ControlEvent> events = failures();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].worker, 1);
  EXPECT_EQ(events[0].seat, 2);
}

TEST_F(Succession, WithStopNothingBegins) {
  form(2);
  end(members[1]);
  EXPECT_FALSE(failure_of(members[0]).goes_on());
  EXPECT_EQ(state->generation(), 1u);
}

TEST_F(Succession, ASilentWorkerIsReplacedAndTurnedAwayWhenItWakes) {
  for (const OnFailure policy : {OnFailure::Restart, OnFailure::Shrink}) {
    on_failure = policy;
    members.clear();
    inbox.clear();
    closed.clear();
    form(2);
    pass(seconds(7), [&] { beat(members[0]); });
    EXPECT_TRUE(failure_of(members[0]).goes_on());
    EXPECT_EQ(closed, std::vector<Id>{members[1]});
    rejoin(members[0], 1);
    const Id newcomer = policy == OnFailure::Restart ? join(1) : 0;
    EXPECT_EQ(place_of(members[0]).generation(), 2u);
    if (newcomer != 0) {
      EXPECT_EQ(place_of(newcomer).worker(), 1u);
    }
  }
}

TEST_F(Succession, WorkersThatEndOneAfterTheOtherAreBothReplaced) {
  on_failure = OnFailure::Restart;
  form(3);
  end(members[1]);
  end(members[2]);
  const std::vector<ControlEvent> events = failures();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[1].goes_on);
  EXPECT_EQ(events[1].seat, 2);
  rejoin(members[0], 1);
  const Id third = join(2);
  const Id second = join(1);
  EXPECT_EQ(place_of(members[0]).members_size(), 3);
  EXPECT_EQ(place_of(second).worker(), 1u);
  EXPECT_EQ(place_of(third).worker(), 2u);
}

TEST_F(Succession, WorkersThatEndOneAfterTheOtherLeaveTheRest) {
  on_failure = OnFailure::Shrink;
  form(4);
  end(members[1]);
  rejoin(members[0], 1);
  end(members[3]);
  rejoin(members[2], 1);
  EXPECT_EQ(place_of(members[0]).members_size(), 2);
  EXPECT_EQ(place_of(members[2]).worker(), 1u);
}

TEST_F(Succession, AProgramThatIsWrongIsNotTriedAgain) {
  on_failure = OnFailure::Restart;
  form(2);
  ToServer report;
  report.mutable_report()->set_generation(1);
  report.mutable_report()->set_kind(static_cast<std::uint32_t>(FailureKind::Usage));
  report.mutable_report()->set_message("no such layer");
  send(members[1], report);
  EXPECT_FALSE(failure_of(members[0]).goes_on());
  EXPECT_EQ(state->generation(), 1u);
}

TEST_F(Succession, WhatFailsAgainAndAgainAtTheSameStepEnds) {
  on_failure = OnFailure::Restart;
  form(2);
  Id other = members[1];
  for (int round = 1; round <= 5; ++round) {
    end(other);
    ASSERT_TRUE(failure_of(members[0]).goes_on()) << round;
    rejoin(members[0], static_cast<std::uint64_t>(round));
    other = join(1);
    next(members[0]);  // the members
    next(members[0]);  // the reply
  }
  end(other);
  EXPECT_FALSE(failure_of(members[0]).goes_on());
}

TEST_F(Succession, StepsBetweenFailuresKeepAJobGoing) {
  on_failure = OnFailure::Restart;
  form(2);
  Id other = members[1];
  for (int round = 1; round <= 20; ++round) {
    beat(members[0], "", static_cast<std::uint64_t>(10 * round));
    end(other);
    ASSERT_TRUE(failure_of(members[0]).goes_on()) << round;
    rejoin(members[0], static_cast<std::uint64_t>(round));
    other = join(1);
    next(members[0]);
    next(members[0]);
  }
}

TEST_F(Succession, WorkersThatComeLaterAreAdmittedWhenTheChiefSaysSo) {
  on_failure = OnFailure::Shrink;
  form(2);
  const Id newcomer = join(2);
  EXPECT_TRUE(next(newcomer).has_welcome());
  ToServer admit;
  admit.mutable_admit()->set_generation(1);
  send(members[1], admit);  // not the chief
  EXPECT_EQ(state->generation(), 1u);
  EXPECT_TRUE(inbox[newcomer].empty());
  send(members[0], admit);
  for (const Id id : members) {
    const control::FailureNotice notice = failure_of(id);
    EXPECT_TRUE(notice.goes_on());
    EXPECT_EQ(notice.worker(), -1);
    rejoin(id, 1);
  }
  EXPECT_EQ(place_of(members[0]).members_size(), 3);
  EXPECT_EQ(place_of(newcomer).worker(), 2u);
}

TEST_F(Succession, NobodyIsAdmittedToAJobThatStopsAfterFailures) {
  form(2);
  join(2);
  ToServer admit;
  admit.mutable_admit()->set_generation(1);
  send(members[0], admit);
  EXPECT_EQ(state->generation(), 1u);
}

TEST_F(Succession, AMemberThatLeavesInsteadOfRejoiningEndsTheWaitOfTheOthers) {
  on_failure = OnFailure::Restart;
  form(3);
  end(members[1]);
  next(members[0]);
  rejoin(members[0], 1);
  const Id newcomer = join(1);
  next(newcomer);
  ToServer leave;
  leave.mutable_leave();
  send(members[2], leave);
  EXPECT_NE(next(newcomer).refusal().message().find("has left: the job is over"),
            std::string::npos);
  // Who comes later is not left waiting, either.
  const Id late = join(1);
  EXPECT_TRUE(next(late).has_welcome());
  EXPECT_NE(next(late).refusal().message().find("the job is over"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
