// Control server and clients over the loopback network, clients as threads.
#include "cluster/control.h"

namespace lockstep {
namespace {

TEST(Control, AllWorkersJoinAndHearTheMembers) {
  ControlServer server(server_options(3));
  Workers workers(server.address(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(workers[i].worker(), i);
    EXPECT_EQ(workers[i].workers(), 3);
    EXPECT_EQ(workers[i].generation(), 1u);
    EXPECT_EQ(workers[i].address(), "127.0.0.1");
    EXPECT_EQ(workers[i].members().at(2).identity, "host:pid 2");
    EXPECT_EQ(workers[i].members().at(2).address, "127.0.0.1");
  }
}

TEST(Control, AnyWorkersGetTheNumbersThatAreLeft) {
  ControlServer server(server_options(4));
  Workers workers(server.address(), 4, [](ControlClientOptions& options) {
    if (options.worker != 2) options.worker = -1;
  });
  std::vector<int> seen(4);
  for (int i = 0; i < 4; ++i) ++seen.at(static_cast<std::size_t>(workers[i].worker()));
  EXPECT_EQ(seen, std::vector<int>(4, 1));
  EXPECT_EQ(workers[2].worker(), 2);
}

TEST(Control, SixtyFourWorkersJoinAndMeet) {
  ControlServer server(server_options(64));
  Workers workers(server.address(), 64);
  on_threads(64, [&](int i) {
    workers[i].store().set("key " + std::to_string(i), std::to_string(i));
    workers[i].barrier("all", kHang);
    const int next = (i + 1) % 64;
    EXPECT_EQ(workers[i].store().get("key " + std::to_string(next), kHang), std::to_string(next));
  });
}

TEST(Control, WorksOverIPv6) {
  ControlServerOptions options = server_options(2);
  options.address = "[::1]:0";
  ControlServer server(options);
  EXPECT_EQ(server.address(), "[::1]:" + std::to_string(server.port()));
  Workers workers(server.address(), 2);
  EXPECT_EQ(workers[1].address(), "::1");
  workers[0].store().set("a", "b");
  EXPECT_EQ(workers[1].store().get("a", kHang), "b");
}

TEST(Control, AGetWaitsUntilTheKeyIsSet) {
  ControlServer server(server_options(2));
  Workers workers(server.address(), 2);
  std::string value;
  std::thread waits([&] { value = workers[0].store().get("late", kHang); });
  // Worker 0 waits as soon as a barrier that it is missing in says so.
  std::string missing;
  while (missing.find("it waits for key \"late\"") == std::string::npos) {
    missing = error_of<CommError>([&] { workers[1].barrier("probe", milliseconds(5)); });
  }
  const std::string bytes("\0\xff not text", 11);
  workers[1].store().set("late", bytes);
  waits.join();
  EXPECT_EQ(value, bytes);
}

TEST(Control, AGetThatNobodySetsNamesTheKeyAfterTheTimeout) {
  ControlServer server(server_options(1));
  Workers workers(server.address(), 1);
  expect_contains(error_of<CommError>([&] { workers[0].store().get("never", milliseconds(20)); }),
                  {"\"never\"", "0.0 s"});
}

TEST(Control, ABarrierNamesWhoIsMissingAndWhatTheyDo) {
  ControlServerOptions options = server_options(3);
  options.heartbeat_timeout = seconds(10);
  ControlServer server(options);
  Workers workers(server.address(), 3);
  workers[1].announce("step 12: all_reduce gradients");
  std::string text;
  while (text.find("step 12: all_reduce gradients") == std::string::npos) {
    text = error_of<CommError>([&] { workers[0].barrier("epoch 3", milliseconds(20)); });
  }
  expect_contains(text,
                  {"\"epoch 3\"", "2 of 3 workers", "worker 1 (host:pid 1)",
                   "it was last in \"step 12: all_reduce gradients\"", "worker 2 (host:pid 2)"});
}

TEST(Control, ABarrierCanBeUsedAgain) {
  ControlServer server(server_options(3));
  Workers workers(server.address(), 3);
  for (int round = 0; round < 5; ++round) {
    on_threads(3, [&](int i) { workers[i].barrier("again", kHang); });
  }
}

TEST(Control, AWorkerThatLeavesIsNoFailureButEndsBarriers) {
  Events events;
  ControlServer server(server_options(2, &events));
  Workers workers(server.address(), 2);
  workers.destroy(1);
  EXPECT_EQ(
      events.wait([](const ControlEvent& e) { return e.kind == ControlEventKind::Left; }).worker,
      1);
  expect_contains(error_of<CommError>([&] { workers[0].barrier("end", kHang); }),
                  {"worker 1 (host:pid 1) has left"});
  EXPECT_FALSE(server.failure());
  EXPECT_EQ(workers.failures(0).size(), 0u);
}

TEST(Control, AReportedFailureReachesAllWithItsKindAndTheFirstOneStays) {
  ControlServer server(server_options(3));
  Workers workers(server.address(), 3);
  std::string waited;
  std::thread waits(
      [&] { waited = error_of<CommError>([&] { workers[1].store().get("never", kHang); }); });
  workers[2].report_failure({.rank = 2, .kind = FailureKind::Data, .message = "record 7 is bad"});
  for (int i = 0; i < 3; ++i) {
    const Failure failure = workers.failures(i).wait();
    EXPECT_EQ(failure.rank, 2);
    EXPECT_EQ(failure.kind, FailureKind::Data);
    EXPECT_EQ(failure.message, "record 7 is bad");
  }
  waits.join();
  expect_contains(waited, {"record 7 is bad", "never"});
  workers[0].report_failure({.rank = 0, .kind = FailureKind::Usage, .message = "a later one"});
  expect_contains(error_of<CommError>([&] { workers[0].store().set("a", "b"); }),
                  {"record 7 is bad"});
  EXPECT_EQ(server.failure()->message, "record 7 is bad");
  // Whoever asks later hears it at once.
  Failures late;
  workers[1].on_failure([&](const Failure& failure) { late.put(failure); });
  EXPECT_EQ(late.wait().message, "record 7 is bad");
  workers[1].on_failure({});
}

TEST(Control, AServerThatEndsIsAFailureOfEveryWorker) {
  auto server = std::make_unique<ControlServer>(server_options(2));
  const std::string address = server->address();
  Workers workers(address, 2);
  server.reset();
  for (int i = 0; i < 2; ++i) {
    const Failure failure = workers.failures(i).wait();
    EXPECT_EQ(failure.rank, i);
    EXPECT_EQ(failure.kind, FailureKind::Comm);
    expect_contains(failure.message, {"has lost the control server at", address.c_str()});
  }
  expect_contains(error_of<CommError>([&] { workers[0].store().set("a", "b"); }),
                  {"is lost", address.c_str()});
}

TEST(Control, WorkersWaitForAServerThatComesLater) {
  std::string address;
  { address = ControlServer(server_options(1)).address(); }
  std::unique_ptr<ControlClient> client;
  std::thread joins([&] { client = std::make_unique<ControlClient>(client_options(address, 0)); });
  ControlServerOptions options = server_options(1);
  options.address = address;
  ControlServer server(options);
  joins.join();
  EXPECT_EQ(client->workers(), 1);
}

TEST(Control, AServerThatDoesNotComeIsNamedWithTheTimeTried) {
  std::string address;
  { address = ControlServer(server_options(1)).address(); }
  ControlClientOptions options = client_options(address, 0);
  options.join_timeout = milliseconds(200);
  expect_contains(error_of<CommError>([&] { ControlClient client(options); }),
                  {address.c_str(), "0.2 s", "Connection refused"});
}

TEST(Control, AWorkerThatDoesNotJoinIsNamed) {
  ControlServer server(server_options(3));
  on_threads(2, [&](int i) {
    ControlClientOptions options = client_options(server.address(), i * 2);
    options.join_timeout = seconds(1);
    // Whichever gives up first is missing for the other.
    expect_contains(error_of<CommError>([&] { ControlClient client(options); }),
                    {"generation 1 of 3 workers was not complete", "worker 1"});
  });
}

TEST(Control, APortOfARangeIsTakenAndATakenPortIsRefused) {
  ControlServer first(server_options(1));
  ControlServerOptions options = server_options(1);
  options.address = first.address();
  expect_contains(error_of<UsageError>([&] { ControlServer second(options); }),
                  {first.address().c_str(), "the port is taken"});
  options.address = "127.0.0.1:" + std::to_string(first.port()) + "-" +
                    std::to_string(std::min(first.port() + 50, 65535));
  const ControlServer second(options);
  EXPECT_GT(second.port(), first.port());
}

TEST(Control, ClocksAreComparedByHeartbeats) {
  ControlServerOptions options = server_options(1);
  options.heartbeat_timeout = milliseconds(500);
  ControlServer server(options);
  Workers workers(server.address(), 1);
  while (workers[0].clock_offset().round_trip.count() == 0) {
    error_of<CommError>([&] { workers[0].store().get("never", milliseconds(10)); });
  }
  const ClockOffset clock = workers[0].clock_offset();
  // Both ends have the same clock here.
  EXPECT_LE(std::abs(clock.offset.count()), clock.round_trip.count());
}

TEST(ControlGenerations, ASmallerOneHasNewNumbersAndRefusesTheOld) {
  ControlServer server(server_options(3));
  Workers workers(server.address(), 3);
  workers[0].store().set("address", "old");
  workers[1].report_failure({.rank = 1, .kind = FailureKind::Comm, .message = "first"});
  workers.failures(2).wait();
  EXPECT_TRUE(workers[0].commit("checkpoint", "of a step before the failure"));
  server.new_generation({0, 2});
  EXPECT_FALSE(workers[0].commit("checkpoint", "of an old chief"));
  expect_contains(error_of<CommError>([&] { workers[0].store().set("a", "b"); }),
                  {"\"a\"", "generation 1", "generation 2", "rejoin()"});
  on_threads(2, [&](int i) { workers[2 * i].rejoin(kHang); });
  EXPECT_EQ(workers[0].worker(), 0);
  EXPECT_EQ(workers[2].worker(), 1);
  EXPECT_EQ(workers[2].workers(), 2);
  EXPECT_EQ(workers[2].generation(), 2u);
  EXPECT_TRUE(workers[0].commit("checkpoint", "of a member again"));
  error_of<CommError>([&] { workers[2].store().get("address", milliseconds(1)); });
  workers[0].store().set("address", "new");
  EXPECT_EQ(workers[2].store().get("address", kHang), "new");
  // The one that was left out hears so.
  expect_contains(error_of<CommError>([&] { workers[1].rejoin(kHang); }),
                  {"no member of generation 2"});
  // A failure of the new generation is told anew.
  workers[2].report_failure({.rank = 1, .kind = FailureKind::Data, .message = "second"});
  const auto second = [](const Failure& failure) { return failure.message == "second"; };
  EXPECT_EQ(workers.failures(0).wait(second).rank, 1);
}

TEST(ControlGenerations, ANewcomerTakesThePlaceOfAWorkerThatHasGone) {
  ControlServer server(server_options(2));
  Workers workers(server.address(), 2);
  workers[1].report_failure({.rank = 1, .kind = FailureKind::Comm, .message = "broken"});
  workers.failures(0).wait();
  workers.destroy(1);
  server.new_generation({0, 1});
  std::unique_ptr<ControlClient> newcomer;
  on_threads(2, [&](int i) {
    if (i == 0) workers[0].rejoin(kHang);
    if (i == 1) newcomer = std::make_unique<ControlClient>(client_options(server.address(), 1));
  });
  EXPECT_EQ(newcomer->generation(), 2u);
  on_threads(2, [&](int i) { (i == 0 ? workers[0] : *newcomer).barrier("new", kHang); });
}

TEST(ControlGenerations, ARejoinThatNobodyAnswersEndsInTime) {
  ControlServer server(server_options(1));
  Workers workers(server.address(), 1);
  expect_contains(error_of<CommError>([&] { workers[0].rejoin(milliseconds(20)); }),
                  {"generation 2 was not begun in time"});
  workers[0].store().set("still", "a member");
}

}  // namespace
}  // namespace lockstep
