// The connections between workers that tell of a death, and addresses of etcd.
#include "cluster/etcd.h"
#include "lockstep/cluster/etcd/etcd_address.h"
#include "lockstep/cluster/etcd/heartbeat_ring.h"

namespace lockstep {
namespace {

struct Lost {
  int observer = -1;
  int worker = -1;
  std::string what;
};

// Workers of a ring, each with the key that it is given.
class Ring {
 public:
  Ring(const std::vector<std::string>& keys, milliseconds timeout) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      rings_.push_back(std::make_unique<HeartbeatRing>(HeartbeatRingOptions{.timeout = timeout}));
      members_.push_back({.address = "127.0.0.1", .port = rings_.back()->port()});
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const int observer = static_cast<int>(i);
      rings_[i]->start(
          {.worker = observer,
           .members = members_,
           .key = keys[i],
           .name = "job/1",
           .lost = [this, observer](int worker, FailureCause, const std::string& what) {
             lost.put({observer, worker, what});
           }});
    }
  }
  ~Ring() {
    for (auto& ring : rings_) {
      if (ring) ring->say_goodbye();
    }
  }
  HeartbeatRing& operator[](std::size_t i) { return *rings_[i]; }
  void destroy(std::size_t i) { rings_[i].reset(); }

  Mailbox<Lost> lost;

 private:
  std::vector<HeartbeatRing::Member> members_;
  std::vector<std::unique_ptr<HeartbeatRing>> rings_;
};

TEST(HeartbeatRing, BothNeighboursNoticeAnEndAtOnce) {
  Ring ring({"key", "key", "key"}, milliseconds(kHang) * 10);
  ring.destroy(1);
  // Worker 0 is connected to it, or finds nobody there; worker 2 hears from it only if it had got
  // as far as connecting.
  const Lost lost = ring.lost.wait([](const Lost& each) { return each.observer == 0; });
  EXPECT_EQ(lost.worker, 1);
  EXPECT_EQ(lost.what, "has ended");
}

TEST(HeartbeatRing, ListensAtAPortOfTheRange) {
  const PortRange ports{.low = 23'280, .high = 23'299};
  const HeartbeatRing first({.ports = ports});
  const HeartbeatRing second({.ports = ports});
  EXPECT_NE(first.port(), second.port());
  for (const int port : {first.port(), second.port()}) {
    EXPECT_TRUE(port >= ports.low && port <= ports.high) << port;
  }
  const PortRange taken{.low = first.port(), .high = first.port()};
  expect_contains(error_of<CommError>([&] { HeartbeatRing third({.ports = taken}); }),
                  {"127.0.0.1", std::to_string(first.port()).c_str()});
}

TEST(HeartbeatRing, WhoDoesNotKnowTheKeyIsNotBelieved) {
  Ring ring({"key", "another"}, milliseconds(kHang) * 10);
  expect_contains(ring.lost.wait().what, {"does not know this job's secret"});
}

TEST(HeartbeatRing, StrangersDisturbNobody) {
  Ring ring({"key", "key"}, seconds(2));
  for (const std::string bytes : {"", "GET / HTTP/1.1\r\n\r\n"}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(ring[0].port()));
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (!bytes.empty()) send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    // Closed by the ring, at the latest after its timeout.
    char byte = 0;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0);
    close(fd);
  }
  EXPECT_EQ(ring.lost.size(), 0u);
}

TEST(EtcdAddresses, AreListsOfHostsAndPortsWithAJob) {
  EXPECT_TRUE(is_etcd_address("etcd://a:1"));
  EXPECT_FALSE(is_etcd_address("a:1"));
  const EtcdAddress address = parse_etcd_address("etcd://a:2379,10.0.0.1:2379,[::1]:4711/run-7");
  EXPECT_EQ(address.endpoints, (std::vector<std::string>{"a:2379", "10.0.0.1:2379", "[::1]:4711"}));
  EXPECT_EQ(address.job, "run-7");
  EXPECT_EQ(parse_etcd_address("etcd://a:1").job, "");
}

TEST(EtcdAddresses, MistakesAreNamed) {
  for (const char* text : {"a:1", "etcd://", "etcd://a", "etcd://a:1,", "etcd://a:1/", "etcd://a:0",
                           "etcd://a:1/b/c"}) {
    EXPECT_THROW(parse_etcd_address(text), UsageError) << text;
  }
  expect_contains(error_of<UsageError>([] { parse_etcd_address("etcd://a:1/b c"); }),
                  {"'b c'", "letters"});
}

}  // namespace
}  // namespace lockstep
