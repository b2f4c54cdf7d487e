// The tests' own hosts: links that are slow, cut, far or lossy, and that nothing is left of them.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hosts/far_network.h"
#include "hosts/hosts.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kPort = 5000;

sockaddr_in at(const std::string& address) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(kPort);
  inet_pton(AF_INET, address.c_str(), &where.sin_addr);
  return where;
}

// A UDP socket on a host.
class Mail {
 public:
  Mail(const NetworkNamespace& network, const std::string& address) {
    network.inside([&] { fd_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
    const sockaddr_in own = at(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
  }
  ~Mail() { close(fd_); }
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  void send(const std::string& address, const std::string& text) const {
    const sockaddr_in to = at(address);
    sendto(fd_, text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  // "" if nothing comes.
  std::string receive() const {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 20'000) <= 0) return {};
    char text[2048];
    const ssize_t size = recv(fd_, text, sizeof text, 0);
    return {text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
  }

 private:
  int fd_ = -1;
};

class Harness : public ::testing::Test {
 protected:
  void SetUp() override {
    static const std::string missing = Hosts::missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

// So that what comes first shows whether what was sent before is lost, nothing waits for silence.
TEST_F(Harness, ACutHostIsReachedAgainWhenItIsHealed) {
  Hosts hosts(2);
  const Mail a(hosts.network(0), hosts.address(0));
  const Mail b(hosts.network(1), hosts.address(1));
  a.send(hosts.address(1), "hello");
  ASSERT_EQ(b.receive(), "hello");
  b.send(hosts.address(0), "hello");
  ASSERT_EQ(a.receive(), "hello");
  hosts.cut(1);
  a.send(hosts.address(1), "lost");
  b.send(hosts.address(0), "lost");
  hosts.heal(1);
  a.send(hosts.address(1), "found");
  b.send(hosts.address(0), "found");
  EXPECT_EQ(b.receive(), "found");
  EXPECT_EQ(a.receive(), "found");
}

TEST_F(Harness, ACutInOneDirectionLetsTheOtherOnePass) {
  Hosts hosts(3);
  const Mail a(hosts.network(0), hosts.address(0));
  const Mail b(hosts.network(1), hosts.address(1));
  const Mail c(hosts.network(2), hosts.address(2));
  a.send(hosts.address(1), "hello");
  ASSERT_EQ(b.receive(), "hello");
  hosts.cut_one_way(0, 1);
  a.send(hosts.address(1), "lost");
  a.send(hosts.address(2), "to another");
  EXPECT_EQ(c.receive(), "to another");
  b.send(hosts.address(0), "back");
  EXPECT_EQ(a.receive(), "back");
  hosts.heal_one_way(0, 1);
  a.send(hosts.address(1), "found");
  EXPECT_EQ(b.receive(), "found");
}

// A link may be slower than it was told, but never faster.
TEST_F(Harness, ALimitedLinkIsNotFaster) {
  Hosts hosts(2);
  hosts.limit(1, "20mbit");
  int listener = -1;
  int sender = -1;
  hosts.network(1).inside([&] { listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  hosts.network(0).inside([&] { sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  const sockaddr_in there = at(hosts.address(1));
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(connect(sender, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  const int receiver = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  constexpr std::size_t kBytes = 1'000'000;  // 400 ms at 20 Mbit/s
  const auto begin = Clock::now();
  std::thread writer([&] {
    const std::string bytes(kBytes, 'x');
    EXPECT_EQ(send(sender, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(kBytes));
  });
  std::vector<char> bytes(kBytes);
  EXPECT_EQ(recv(receiver, bytes.data(), kBytes, MSG_WAITALL), static_cast<ssize_t>(kBytes));
  EXPECT_GE(Clock::now() - begin, 350ms);
  writer.join();
  for (const int fd : {listener, sender, receiver}) close(fd);
}

TEST_F(Harness, AFarNetworkDelaysAndDropsPackets) {
  if (const std::string missing = FarNetwork::missing(); !missing.empty()) GTEST_SKIP() << missing;
  Hosts hosts(2);
  const FarNetwork far(hosts, {.delay = 20ms, .loss = 0.25, .seed = 3});
  const Mail a(hosts.network(0), far.address(0));
  const Mail b(hosts.network(1), far.address(1));
  const auto begin = Clock::now();
  for (int i = 0; i < 200; ++i) a.send(far.address(1), "one of many");
  for (int i = 0; i < 50; ++i) a.send(far.address(1), "end");  // one of them gets there
  int arrived = 0;
  while (b.receive() == "one of many") ++arrived;
  EXPECT_GE(Clock::now() - begin, 20ms);
  EXPECT_GT(arrived, 100);
  EXPECT_LT(arrived, 200);
  EXPECT_GT(far.dropped(), 0);
}

// The process that made the hosts is killed; what it had started ends, too: nobody holds the other
// end of the pipe any more.
TEST_F(Harness, NothingIsLeftOfAKilledTest) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t test = fork();
  if (test == 0) {
    close(ends[0]);
    const Hosts hosts(1);
    const auto sleeper = hosts.start(0, {.command = {"sh", "-c", "echo up; exec sleep 1000"}});
    const bool up = sleeper->await_text("up", 20s);
    if (write(ends[1], up ? "+" : "-", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  close(ends[1]);
  char text = 0;
  ASSERT_EQ(read(ends[0], &text, 1), 1);
  EXPECT_EQ(text, '+');
  kill(test, SIGKILL);
  waitpid(test, nullptr, 0);
  pollfd closed{.fd = ends[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&closed, 1, 20'000), 1);
  EXPECT_EQ(read(ends[0], &text, 1), 0);
  close(ends[0]);
}

}  // namespace
}  // namespace lockstep
