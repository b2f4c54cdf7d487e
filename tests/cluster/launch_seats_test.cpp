// Workers are divided over hosts, and cores over workers.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/launch/control.h"
#include "lockstep/cluster/launch/cores.h"
#include "lockstep/cluster/launch/hosts.h"
#include "lockstep/cluster/launch/remote.h"
#include "lockstep/device/cpu/core_quota.h"

namespace lockstep::launch {
namespace {

std::string seated(int workers, const std::vector<std::string>& hosts) {
  std::string text;
  for (const Seat& seat : seat_workers(workers, parse_hosts(hosts))) {
    text +=
        fmt::format("{}:{}={}/{} ", seat.worker, seat.host, seat.local_worker, seat.local_workers);
  }
  return text;
}

TEST(Seats, AreBlocksAsEvenAsPossible) {
  EXPECT_EQ(seated(2, {}), "0:localhost=0/2 1:localhost=1/2 ");
  EXPECT_EQ(seated(5, {"a", "b"}), "0:a=0/3 1:a=1/3 2:a=2/3 3:b=0/2 4:b=1/2 ");
  EXPECT_EQ(seated(0, {"a", "b"}), "0:a=0/1 1:b=0/1 ");
}

TEST(Seats, FollowTheSlots) {
  EXPECT_EQ(seated(0, {"a:2", "b:1"}), "0:a=0/2 1:a=1/2 2:b=0/1 ");
  EXPECT_EQ(seated(2, {"a:1", "b:2"}), "0:a=0/1 1:b=0/1 ");
  EXPECT_EQ(seated(0, {"me@[::1]:2"}), "0:me@::1=0/2 1:me@::1=1/2 ");
}

TEST(Seats, OfAHostThatIsNamedTwiceAreCountedTogether) {
  EXPECT_EQ(seated(3, {"a", "b", "a"}), "0:a=0/2 1:b=0/1 2:a=1/2 ");
}

TEST(Seats, ThatCannotBeAreRefused) {
  EXPECT_THROW(seated(1, {"a", "b"}), UsageError);
  EXPECT_THROW(seated(4, {"a:2", "b:1"}), UsageError);
  EXPECT_THROW(seated(0, {}), UsageError);
  EXPECT_THROW(parse_hosts({"a:2", "b"}), UsageError);
  EXPECT_THROW(parse_hosts({"a:0"}), UsageError);
  EXPECT_THROW(parse_hosts({"a:many"}), UsageError);
  EXPECT_THROW(parse_hosts({""}), UsageError);
  EXPECT_THROW(parse_hosts({"-oProxyCommand=x"}), UsageError);
}

TEST(CoreShares, AreDisjointAndCoverAllCores) {
  const std::vector<int> cores = {0, 1, 2, 3, 8, 9, 10};
  for (int workers = 1; workers <= 7; ++workers) {
    std::vector<int> covered;
    int busy = 0;
    for (const CoreShare& share : share_cores(cores, 0, workers, 0)) {
      covered.insert(covered.end(), share.affinity.begin(), share.affinity.end());
      EXPECT_EQ(share.cores, std::ssize(share.affinity));
      busy += share.cores;
    }
    EXPECT_EQ(covered, cores);
    EXPECT_EQ(busy, 7);
  }
}

TEST(CoreShares, OfMoreWorkersThanCoresAreOneCoreEach) {
  const auto shares = share_cores({4, 5}, 0, 5, 0);
  ASSERT_EQ(shares.size(), 5u);
  for (const CoreShare& share : shares) {
    EXPECT_EQ(share.cores, 1);
    EXPECT_EQ(share.affinity.size(), 1u);
  }
  EXPECT_EQ(shares[0].affinity[0], 4);
  EXPECT_EQ(shares[4].affinity[0], 5);
}

TEST(CoreShares, RespectTheLimitOfTheControlGroup) {
  EXPECT_EQ(granted_cores("max 100000\n"), 0);
  EXPECT_EQ(granted_cores("150000 100000\n"), 2);
  EXPECT_EQ(granted_cores(""), 0);
  const auto shares = share_cores({0, 1, 2, 3, 4, 5, 6, 7}, 4, 2, 0);
  EXPECT_EQ(shares[1].cores, 2);
  EXPECT_EQ(shares[1].affinity, (std::vector<int>{4, 5, 6, 7}));
}

TEST(CoreShares, AreAsManyAsTheUserSays) {
  const auto shares = share_cores({0, 1, 2, 3, 4, 5}, 0, 2, 2);
  EXPECT_EQ(shares[0].affinity, (std::vector<int>{0, 1}));
  EXPECT_EQ(shares[1].affinity, (std::vector<int>{2, 3}));
  EXPECT_THROW(share_cores({0, 1, 2}, 0, 2, 2), UsageError);
  EXPECT_THROW(share_cores({0, 1, 2, 3}, 2, 2, 2), UsageError);
}

TEST(ControlAddress, IsLoopbackUnlessAWorkerIsElsewhere) {
  EXPECT_EQ(control_bind_address("", seat_workers(2, {})), "127.0.0.1");
  EXPECT_EQ(control_bind_address("10.1.2.3", seat_workers(2, {})), "10.1.2.3");
  EXPECT_EQ(control_bind_address("", seat_workers(1, {{.name = "me@127.0.0.1"}})), "127.0.0.1");
  EXPECT_THROW(control_bind_address("", seat_workers(1, {{.name = "no-such-host.invalid"}})),
               UsageError);
  EXPECT_EQ(with_port("::1", 80), "[::1]:80");
}

TEST(ControlPort, ComesFromTheRangeAndSkipsWhatIsTaken) {
  const auto first = reserve_control_port({.bind = "127.0.0.1", .secret = ""});
  const int taken = std::stoi(first->address().substr(first->address().find(':') + 1));
  ASSERT_GT(taken, 0);
  if (taken > 65500) GTEST_SKIP() << "the free port " << taken << " is too close to the last";
  const auto second =
      reserve_control_port({.bind = "127.0.0.1", .ports = {taken, taken + 30}, .secret = ""});
  const int next = std::stoi(second->address().substr(second->address().find(':') + 1));
  EXPECT_GT(next, taken);
  EXPECT_LE(next, taken + 30);
  EXPECT_THROW(reserve_control_port({.bind = "127.0.0.1", .ports = {taken, taken}, .secret = ""}),
               UsageError);
  EXPECT_THROW(reserve_control_port({.bind = "somewhere", .secret = ""}), UsageError);
  for (const char* text : {"1", "0-5", "9-5", "1-70000", "a-b", "1-2-3"}) {
    EXPECT_THROW(parse_port_range(text, "--port-range"), UsageError) << text;
  }
}

TEST(ShellWords, SurviveAnyText) {
  EXPECT_EQ(quoted("don't $stop"), "'don'\\''t $stop'");
}

}  // namespace
}  // namespace lockstep::launch
