// What the control server decides, with a clock of the test's own.
#include "cluster/control_state.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST_F(ControlStateOf, NobodyIsAMemberBeforeAllHaveJoined) {
  start(2);
  const Id first = join(0);
  EXPECT_TRUE(next(first).has_welcome());
  EXPECT_TRUE(inbox[first].empty());
  const Id second = join(-1);
  EXPECT_EQ(next(first).members().worker(), 0u);
  EXPECT_TRUE(next(second).has_welcome());
  EXPECT_EQ(next(second).members().worker(), 1u);
}

TEST_F(ControlStateOf, ASilentWorkerIsNamedOnceAndToAll) {
  form(3);
  pass(seconds(4), [&] {
    beat(members[0]);
    beat(members[1], "step 4");
    beat(members[2]);
  });
  pass(seconds(7), [&] {
    beat(members[0]);
    beat(members[2]);
  });
  ASSERT_TRUE(state->failure());
  EXPECT_EQ(state->failure()->rank, 1);
  EXPECT_EQ(state->failure()->message,
            "worker 1 (host:pid 2) has been silent for 6.0 s; it was last in \"step 4\"");
  for (const Id id : members) {
    EXPECT_EQ(next(id).failure().message(), state->failure()->message);
    EXPECT_TRUE(inbox[id].empty());
  }
  // A later end is not told.
  state->disconnect(members[2], now);
  collect();
  EXPECT_TRUE(inbox[members[0]].empty());
}

TEST_F(ControlStateOf, APauseOfTheServerIsNoSilence) {
  form(2);
  tick(seconds(1));
  tick(seconds(3600));
  EXPECT_FALSE(state->failure());
  tick(seconds(1));
  EXPECT_FALSE(state->failure());
  for (int i = 0; i < 6; ++i) tick(seconds(1));
  EXPECT_TRUE(state->failure());
}

TEST_F(ControlStateOf, AnUnfinishedHandshakeIsEnded) {
  start(1);
  const Id id = connect();
  for (int i = 0; i < 6; ++i) tick(seconds(1));
  EXPECT_TRUE(next(id).has_refusal());
  EXPECT_EQ(closed, std::vector<Id>{id});
  EXPECT_EQ(state->refused(), 1u);
}

TEST_F(ControlStateOf, MoreStrangersThanWorkersCouldBeAreRefused) {
  start(1);
  for (int i = 0; i < 1024; ++i) connect();
  EXPECT_TRUE(closed.empty());
  connect();
  EXPECT_EQ(closed.size(), 1u);
}

TEST_F(ControlStateOf, AProofOfTheServerIsNoneOfAWorker) {
  start(1);
  const Id id = connect();
  ToServer hello;
  hello.mutable_hello()->set_version("1");
  hello.mutable_hello()->set_job("job");
  hello.mutable_hello()->set_nonce(std::string(kNonceBytes, 'a'));
  send(id, hello);
  ToServer proof;
  proof.mutable_proof()->set_proof(prove("secret", Prover::Server,
                                         {.job = "job",
                                          .worker = 0,
                                          .worker_nonce = std::string(kNonceBytes, 'a'),
                                          .server_nonce = next(id).challenge().nonce()}));
  send(id, proof);
  EXPECT_TRUE(next(id).has_refusal());
}

TEST_F(ControlStateOf, AMemberThatTalksNonsenseHasFailed) {
  form(2);
  state->receive(members[1], "\xff\xff", now);
  collect();
  EXPECT_TRUE(next(members[1]).has_refusal());
  EXPECT_EQ(next(members[0]).failure().worker(), 1);
}

TEST_F(ControlStateOf, WorkersThatOthersWaitForAreNamedIfTheyMakeNoProgress) {
  form(3);
  pass(seconds(59), [&] {
    beat(members[0], "step 8: all_reduce", 8, true);
    beat(members[1], "step 8: all_reduce", 8, true);
    beat(members[2], "step 8: forward", 8);
  });
  EXPECT_FALSE(state->failure());
  pass(seconds(3), [&] {
    beat(members[0], "step 8: all_reduce", 8, true);
    beat(members[1], "step 8: all_reduce", 8, true);
    beat(members[2], "step 8: forward", 8);
  });
  ASSERT_TRUE(state->failure());
  EXPECT_EQ(state->failure()->rank, 2);
  EXPECT_NE(state->failure()->message.find("worker 2 (host:pid 3) has made no progress after step "
                                           "8 for 6"),
            std::string::npos)
      << state->failure()->message;
  EXPECT_NE(
      state->failure()->message.find("\"step 8: forward\"; waiting for it: worker 0, worker 1"),
      std::string::npos)
      << state->failure()->message;
}

TEST_F(ControlStateOf, ProgressAndActivitiesThatTakeLongAreNoFailure) {
  form(2);
  std::uint64_t step = 0;
  pass(seconds(200), [&] {
    beat(members[0], "", 1, true);
    beat(members[1], "", ++step / 50);
  });
  EXPECT_FALSE(state->failure());
  for (const char* activity : {"planning", "validating 3 of 7", "saving"}) {
    pass(seconds(200), [&] {
      beat(members[0], "", 1, true);
      beat(members[1], activity, 0);
    });
    EXPECT_FALSE(state->failure()) << activity;
  }
  // Nobody waits.
  pass(seconds(200), [&] {
    beat(members[0], "", 1);
    beat(members[1], "", 1);
  });
  EXPECT_FALSE(state->failure());
}

TEST_F(ControlStateOf, AWorkerThatNeverJoinsIsNamedAtTheDeadline) {
  start(3);
  const Id id = join(1);
  next(id);
  pass(seconds(101), [&] { beat(id); });
  EXPECT_EQ(next(id).refusal().message(),
            "generation 1 of 3 workers was not complete in time; missing: worker 0, worker 2");
}

TEST_F(ControlStateOf, AWorkerThatEndsBeforeTheGenerationIsCompleteMakesRoom) {
  start(2);
  const Id first = join(0);
  state->disconnect(first, now);
  const Id again = join(0);
  const Id second = join(1);
  EXPECT_TRUE(next(again).has_welcome());
  EXPECT_TRUE(next(again).has_members());
  EXPECT_TRUE(next(second).has_welcome());
  EXPECT_FALSE(state->failure());
}

TEST_F(ControlStateOf, ASilentWorkersPlaceIsTakenByANewcomer) {
  form(2);
  pass(seconds(7), [&] { beat(members[0]); });
  ASSERT_TRUE(state->failure());
  next(members[0]);
  state->begin_generation({0, 1}, now);
  collect();
  rejoin(members[0], 1);
  EXPECT_TRUE(inbox[members[0]].empty());
  const Id newcomer = join(1);
  EXPECT_EQ(next(members[0]).members().generation(), 2u);
  EXPECT_TRUE(next(members[0]).reply().ok());
  EXPECT_TRUE(next(newcomer).has_welcome());
  EXPECT_EQ(next(newcomer).members().worker(), 1u);
  EXPECT_EQ(closed, std::vector<Id>{members[1]});
}

TEST_F(ControlStateOf, WorkersMayAskForTheNextGenerationBeforeItBegins) {
  form(3);
  state->disconnect(members[0], now);
  collect();
  next(members[1]);
  next(members[2]);
  rejoin(members[1], 1);
  rejoin(members[2], 1);
  const Id newcomer = join(-1);
  next(newcomer);
  EXPECT_TRUE(inbox[members[1]].empty());
  state->begin_generation({2, 1, -1, -1}, now);
  collect();
  EXPECT_TRUE(inbox[members[1]].empty());  // two places, one newcomer
  const Id another = join(3);
  next(another);
  EXPECT_EQ(next(members[2]).members().worker(), 0u);
  EXPECT_EQ(next(members[1]).members().worker(), 1u);
  EXPECT_EQ(next(newcomer).members().worker(), 2u);
  EXPECT_EQ(next(another).members().worker(), 3u);
}

TEST_F(ControlStateOf, ARunningGenerationIsEndedByTheNext) {
  form(2);
  state->begin_generation({0, 1, -1}, now);
  collect();
  EXPECT_EQ(next(members[0]).failure().message(),
            "generation 1 has ended: the job goes on as generation 2");
  EXPECT_THROW(state->begin_generation({0, 0}, now), UsageError);
  EXPECT_THROW(state->begin_generation({3}, now), UsageError);
  EXPECT_THROW(state->begin_generation({}, now), UsageError);
  EXPECT_EQ(state->generation(), 2u);
}

TEST_F(ControlStateOf, AReportOfAnOldGenerationIsIgnored) {
  form(1);
  state->begin_generation({0}, now);
  rejoin(members[0], 1);
  ToServer report;
  report.mutable_report()->set_generation(1);
  report.mutable_report()->set_message("late");
  send(members[0], report);
  EXPECT_FALSE(state->failure());
}

TEST_F(ControlStateOf, ABarrierThatTimesOutNamesBothSidesAndWhatTheyDo) {
  form(3);
  beat(members[1], "saving the checkpoint");
  barrier(members[0], "a");
  barrier(members[2], "b");
  pass(seconds(4), [&] {
    for (const Id id : members) beat(id, id == members[1] ? "saving the checkpoint" : "");
  });
  EXPECT_EQ(
      next(members[0]).reply().text(),
      "[barrier] \"a\": after 3.0 s, 2 of 3 workers are missing: worker 1 (host:pid 2); it was "
      "last in \"saving the checkpoint\", worker 2 (host:pid 3); it waits in barrier \"b\"");
}

TEST_F(ControlStateOf, ValuesBeyondTheLimitAreErrorsOfTheirCalls) {
  form(1);
  ToServer message;
  message.mutable_set()->set_id(1);
  message.mutable_set()->set_generation(1);
  message.mutable_set()->set_key("key");
  message.mutable_set()->set_value(std::string(kMaxStoreValue + 1, 'x'));
  send(members[0], message);
  const ToWorker answer = next(members[0]);
  EXPECT_FALSE(answer.reply().ok());
  EXPECT_NE(answer.reply().text().find("1048577 bytes"), std::string::npos);
  message.mutable_set()->set_value("x");
  message.mutable_set()->set_key(std::string(2 * kMaxControlName, 'k'));
  send(members[0], message);
  EXPECT_FALSE(next(members[0]).reply().ok());
  EXPECT_FALSE(state->failure());
}

}  // namespace
}  // namespace lockstep
