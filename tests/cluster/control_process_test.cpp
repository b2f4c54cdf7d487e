// Workers as processes of their own: killed, stopped, and going on. A child is a new run of the
// test that asks for it, as in tests/comm/processes.h.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

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
  int threads() const {
    int count = 0;
    const std::filesystem::path tasks = "/proc/" + std::to_string(pid_) + "/task";
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(tasks)) ++count;
    return count;
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

  milliseconds timeout{2000};
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
  expect_contains(failure.message, {"worker 1 (", "has been silent for 2.", "it was last in"});
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

// A server in a child: `what` has the descriptor to write its address to, and how many workers it
// expects.
[[noreturn]] void be_server(const char* what) {
  int pipe = -1;
  int workers = 0;
  if (std::sscanf(what, "%d %d", &pipe, &workers) != 2) std::_Exit(1);
  ControlServerOptions options = server_options(workers);
  options.heartbeat_timeout = milliseconds(workers == 1 ? 1000 : 60'000);
  const ControlServer server(options);
  const std::string address = server.address() + "\n";
  if (write(pipe, address.data(), address.size()) < 0) std::_Exit(1);
  while (true) pause();
}

class ControlServerProcess : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* what = std::getenv(kChildVariable)) be_server(what);
  }
  void start(int workers) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    child.emplace(std::to_string(ends[1]) + " " + std::to_string(workers));
    close(ends[1]);
    for (char each = 0; read(ends[0], &each, 1) == 1 && each != '\n';) address += each;
    close(ends[0]);
  }
  std::optional<Child> child;
  std::string address;
};

TEST_F(ControlServerProcess, AWorkerThatIsCutOffFromTheServerHearsSo) {
  start(1);
  Failures failures;
  ControlClient client(client_options(address, 0));
  client.on_failure([&](const Failure& failure) { failures.put(failure); });
  child->signal(SIGSTOP);
  const Failure failure = failures.wait();
  EXPECT_EQ(failure.rank, 0);
  expect_contains(failure.message,
                  {"worker 0 has lost the control server at", address.c_str(), "not answered for"});
  expect_contains(error_of<CommError>([&] { client.store().set("a", "b"); }), {"is lost"});
}

TEST_F(ControlServerProcess, AKilledServerIsNoticedAtOnce) {
  start(1);
  Failures failures;
  ControlClient client(client_options(address, 0));
  client.on_failure([&](const Failure& failure) { failures.put(failure); });
  child->end(SIGKILL);
  expect_contains(failures.wait().message, {"worker 0 has lost the control server"});
}

TEST_F(ControlServerProcess, CallsThatWaitOccupyNoThreads) {
  start(64);
  Workers workers(address, 64);
  std::thread waits([&] {
    on_threads(64, [&](int i) { EXPECT_EQ(workers[i].store().get("go", kHang), "on"); });
  });
  std::string missing;
  const auto all_wait = [&] {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = missing.find("waits for key", at)) != std::string::npos; ++at) {
      ++count;
    }
    return count == 63;  // all but the one that asks
  };
  while (!all_wait()) {
    missing = error_of<CommError>([&] { workers[0].barrier("probe", milliseconds(20)); });
  }
  EXPECT_LT(child->threads(), 32);
  workers[0].store().set("go", "on");
  waits.join();
}

TEST_F(ControlServerProcess, ConnectionsAreNotInheritedByPrograms) {
  start(1);
  ControlServer server(server_options(1));
  ControlClient client(client_options(address, 0));
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    struct stat kind {};
    if (fd < 3 || fstat(fd, &kind) != 0 || !S_ISSOCK(kind.st_mode)) continue;
    ++sockets;
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC) << fd;
  }
  EXPECT_GE(sockets, 2);
}

}  // namespace
}  // namespace lockstep
