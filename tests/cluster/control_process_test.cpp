// Workers as processes of their own: killed, stopped, and going on. A child is a new run of the
// test that asks for it, as in tests/comm/processes.h.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "cluster/control.h"

namespace lockstep {
namespace {

constexpr const char* kChildVariable = "LOCKSTEP_CONTROL_CHILD";

// Worker 1 of the server at this address: announces what it does, meets the others, and stays.
[[noreturn]] void be_worker(const std::string& address) {
  try {
    ControlClientOptions options = client_options(address, 1);
    options.identity = {};
    ControlClient client(options);
    client.announce("step 3: waiting for its end");
    Failures failures;
    client.on_failure([&](const Failure& failure) { failures.put(failure); });
    client.barrier("up", kHang);
    // Ends when told to.
    if (client.store().get("end", kHang) == "leave") client.leave();
    std::_Exit(0);
  } catch (const std::exception&) {
    std::_Exit(1);
  }
}

class Child {
 public:
  explicit Child(const std::string& address) {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    std::string filter =
        std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
    std::string program = "cluster_test";
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    setenv(kChildVariable, address.c_str(), 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    char* const arguments[] = {program.data(), filter.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    unsetenv(kChildVariable);
  }
  ~Child() { end(SIGKILL); }
  void signal(int number) const { kill(pid_, number); }
  // The status that waitpid gives.
  int end(int number = 0) {
    int status = 0;
    if (pid_ <= 0) return status;
    if (number != 0) kill(pid_, number);
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  std::string name() const { return "pid " + std::to_string(pid_) + ")"; }

 private:
  pid_t pid_ = -1;
};

// A server, worker 0 in this process and worker 1 in a child; both have met.
class ControlProcess : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* address = std::getenv(kChildVariable)) be_worker(address);
    ControlServerOptions options = server_options(2, &events);
    options.heartbeat_timeout = timeout;
    server.emplace(options);
    child.emplace(server->address());
    client = std::make_unique<ControlClient>(client_options(server->address(), 0));
    client->on_failure([this](const Failure& failure) { failures.put(failure); });
    client->barrier("up", kHang);
    // The server knows what the child does.
    std::string missing;
    while (missing.find("waits for key \"end\"") == std::string::npos ||
           missing.find("step 3") == std::string::npos) {
      missing = error_of<CommError>([&] { client->barrier("probe", milliseconds(5)); });
    }
  }
  // Lets this much time pass, as the server measures it.
  void pass(milliseconds time) {
    error_of<CommError>([&] { client->store().get("nothing", time); });
  }

  milliseconds timeout{1000};
  Events events;
  Failures failures;
  std::optional<ControlServer> server;
  std::optional<Child> child;
  std::unique_ptr<ControlClient> client;
};

class ControlProcessPatient : public ControlProcess {
 protected:
  // No heartbeat is missed in this time: only the end of the connection tells.
  ControlProcessPatient() { timeout = 10 * kHang; }
};

TEST_F(ControlProcessPatient, AKilledWorkerIsNamedAtOnceWithWhatItDid) {
  const std::string name = child->name();
  child->end(SIGKILL);
  const Failure failure = failures.wait();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.kind, FailureKind::Comm);
  expect_contains(failure.message, {"worker 1 (", name.c_str(), "has ended",
                                    "it was last in \"step 3: waiting for its end\""});
}

TEST_F(ControlProcessPatient, AWorkerThatExitsWithoutLeavingHasEnded) {
  client->store().set("end", "without a word");
  EXPECT_EQ(child->end(), 0);
  expect_contains(failures.wait().message, {"worker 1 (", "has ended"});
}

TEST_F(ControlProcessPatient, AWorkerThatLeavesHasNotFailed) {
  client->store().set("end", "leave");
  EXPECT_EQ(child->end(), 0);
  const auto left = [](const ControlEvent& e) { return e.kind == ControlEventKind::Left; };
  EXPECT_EQ(events.wait(left).worker, 1);
  EXPECT_FALSE(server->failure());
  EXPECT_EQ(failures.size(), 0u);
}

TEST_F(ControlProcess, AWorkerThatIsStoppedForLongIsNamedSilent) {
  child->signal(SIGSTOP);
  const Failure failure = failures.wait();
  child->signal(SIGCONT);
  EXPECT_EQ(failure.rank, 1);
  expect_contains(failure.message, {"worker 1 (", "has been silent for 1.", "it was last in"});
}

TEST_F(ControlProcess, AWorkerThatIsStoppedForAMomentGoesOn) {
  child->signal(SIGSTOP);
  pass(timeout / 3);
  child->signal(SIGCONT);
  pass(timeout * 3 / 2);
  EXPECT_FALSE(server->failure()) << server->failure()->message;
  client->store().set("end", "leave");
  EXPECT_EQ(child->end(), 0);
  EXPECT_EQ(failures.size(), 0u);
}

// A server in a child, which is stopped: its workers find themselves cut off.
[[noreturn]] void be_server(const char* pipe) {
  ControlServerOptions options = server_options(1);
  options.heartbeat_timeout = milliseconds(500);
  const ControlServer server(options);
  const std::string address = server.address() + "\n";
  if (write(std::atoi(pipe), address.data(), address.size()) < 0) std::_Exit(1);
  while (true) pause();
}

TEST(ControlServerProcess, AWorkerThatIsCutOffFromTheServerHearsSo) {
  if (const char* pipe = std::getenv(kChildVariable)) be_server(pipe);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child child(std::to_string(ends[1]));
  close(ends[1]);
  std::string address;
  for (char each = 0; read(ends[0], &each, 1) == 1 && each != '\n';) address += each;
  close(ends[0]);
  ControlClient client(client_options(address, 0));
  Failures failures;
  client.on_failure([&](const Failure& failure) { failures.put(failure); });
  child.signal(SIGSTOP);
  const Failure failure = failures.wait();
  EXPECT_EQ(failure.rank, 0);
  expect_contains(failure.message,
                  {"worker 0 has lost the control server at", address.c_str(), "not answered for"});
  expect_contains(error_of<CommError>([&] { client.store().set("a", "b"); }), {"is lost"});
  client.on_failure({});
}

TEST(ControlServerProcess, AKilledServerIsNoticedAtOnce) {
  if (const char* pipe = std::getenv(kChildVariable)) be_server(pipe);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child child(std::to_string(ends[1]));
  close(ends[1]);
  std::string address;
  for (char each = 0; read(ends[0], &each, 1) == 1 && each != '\n';) address += each;
  close(ends[0]);
  ControlClient client(client_options(address, 0));
  Failures failures;
  client.on_failure([&](const Failure& failure) { failures.put(failure); });
  child.end(SIGKILL);
  expect_contains(failures.wait().message, {"worker 0 has lost the control server"});
  client.on_failure({});
}

}  // namespace
}  // namespace lockstep
