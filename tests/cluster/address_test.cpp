// Address: what is read, how it is printed, and what is refused.
#include "lockstep/cluster/address.h"

#include <gtest/gtest.h>

#include <vector>

#include "cluster/resolved.h"

namespace lockstep {
namespace {

struct Read {
  const char* text;
  const char* host;
  int port;
};

TEST(Address, IsReadAndPrintedTheSame) {
  for (const Read& read : std::vector<Read>{{"node1:5000", "node1", 5000},
                                            {"10.0.0.1:1", "10.0.0.1", 1},
                                            {"a_b-c.example.org:65535", "a_b-c.example.org", 65535},
                                            {"[::1]:123", "::1", 123},
                                            {"[fe80::1%eth0]:80", "fe80::1%eth0", 80},
                                            {"[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80}}) {
    const Address address = parse_address(read.text, "X");
    EXPECT_EQ(address.host, read.host);
    EXPECT_EQ(address.port, read.port);
    EXPECT_EQ(address.text(), read.text);
  }
}

TEST(Address, WhatIsNotOneIsRefusedWithAnExample) {
  for (const char* text : {"",
                           ":",
                           "node1",
                           "node1:",
                           ":5000",
                           "node1:0",
                           "node1:65536",
                           "node1:-1",
                           "node1:5x",
                           "node1: 5",
                           "node 1:5",
                           "[::1]",
                           "[::1]:",
                           "[node1]:5",
                           "[::1:5",
                           "::1]:5",
                           "[]:5",
                           "http://node1:5",
                           "node1:5000/x",
                           "-n:5",
                           "[::1%]:5",
                           "[::g]:5",
                           "node1:99999999999999999999"}) {
    EXPECT_THROW(parse_address(text, "X"), UsageError) << text;
  }
  EXPECT_THROW(parse_address(std::string(300, 'a') + ":1", "X"), UsageError);
}

TEST(Address, ToListenAtMayHaveARangeOfPortsOrAnyPort) {
  EXPECT_EQ(parse_listen_address("[::1]:0", "X").host, "::1");
  EXPECT_TRUE(parse_listen_address("[::1]:0", "X").ports.any());
  EXPECT_EQ(parse_listen_address("10.0.0.1:4711", "X").ports, (PortRange{4711, 4711}));
  EXPECT_EQ(parse_listen_address("10.0.0.1:4711-4720", "X").ports, (PortRange{4711, 4720}));
  for (const char* text :
       {"10.0.0.1", "10.0.0.1:", "10.0.0.1:5-4", "10.0.0.1:-4", ":4711", "a:x"}) {
    EXPECT_THROW(parse_listen_address(text, "X"), UsageError) << text;
  }
}

TEST(Address, AV6HostNeedsBracketsBeforeAPortButNotAlone) {
  try {
    parse_address("::1:5000", "LOCKSTEP_CONTROL");
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    expect_all_in(error.what(), {"LOCKSTEP_CONTROL", "'::1:5000'", "[::1]:5000"});
  }
  EXPECT_EQ(parse_host("::1", "X"), "::1");
  EXPECT_EQ(parse_host("[::1]", "X"), "::1");
  EXPECT_THROW(parse_host("node1:5000", "X"), UsageError);
  EXPECT_THROW(parse_host("[node1]", "X"), UsageError);
}

}  // namespace
}  // namespace lockstep
