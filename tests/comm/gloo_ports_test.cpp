// Gloo with ports of a range, where a firewall opens only some.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr PortRange kPorts{.low = 23'200, .high = 23'259};

bool in_range(int port) {
  return port >= kPorts.low && port <= kPorts.high;
}

int port_of(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return address.sin_family == AF_INET ? ntohs(address.sin_port) : 0;
}

// Connections of this process: how many have a port of the range at one end, and how many have not.
std::pair<int, int> connections() {
  std::pair<int, int> found{0, 0};
  for (int fd = 0; fd < 4096; ++fd) {
    const int own = port_of(fd, getsockname);
    const int other = port_of(fd, getpeername);
    if (own == 0 || other == 0) continue;
    ++(in_range(own) || in_range(other) ? found.first : found.second);
  }
  return found;
}

TEST(GlooPorts, ConnectionsAreMadeAtPortsOfTheRange) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  const auto before = connections();
  LocalStore store;
  run_workers(4, [&](int worker) {
    GlooOptions gloo = gloo_options(store, worker, 4);
    gloo.ports = kPorts;
    RemoteGroup group(remote_group_of({1, 1, 1, 1}, gloo_wires(gloo)));
    for (int round = 0; round < 2; ++round) {
      expect_no_errors(run_ranks(group, [](Communicator& comm) {
        Bytes data(400'000);
        for (std::size_t i = 0; i < 100'000; ++i) {
          lockstep::store<std::int32_t>(data, i, 1 << comm.rank());
        }
        const auto sum = comm.all_reduce(data, DType::I32);
        sum->start();
        sum->finish();
        for (std::size_t i = 0; i < 100'000; ++i) ASSERT_EQ(load<std::int32_t>(data, i), 15);
      }));
      if (round == 0) group.reset();  // new connections, at ports that were used before
    }
    store.set("measure " + std::to_string(worker), "");
    for (int w = 0; w < 4; ++w) store.get("measure " + std::to_string(w), 2min);
    if (worker == 0) {
      const auto now = connections();
      EXPECT_EQ(now.first - before.first, 4 * 3);
      EXPECT_EQ(now.second, before.second);
      store.set("measured", "");
    }
    store.get("measured", 2min);
  });
}

TEST(GlooPorts, ARangeThatIsTakenIsNamedAtOnce) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  const int taken = port_of(fd, getsockname);
  LocalStore store;
  GlooOptions options = gloo_options(store, 0, 2);
  options.ports = {.low = taken, .high = taken};
  try {
    gloo_wires(options)(0);
    ADD_FAILURE() << "a wire listens at a port that is taken";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(taken)), std::string::npos) << text;
    EXPECT_NE(text.find("give a larger range"), std::string::npos) << text;
  }
  close(fd);
}

}  // namespace
}  // namespace lockstep
