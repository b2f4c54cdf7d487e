#include "lockstep/explain/network.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Network, IsKnownByNameInAnyCase) {
  EXPECT_EQ(parse_link("ib-ndr").name, "ib-ndr");
  EXPECT_EQ(parse_link("IB-NDR").bytes_per_s, parse_link("ib-ndr").bytes_per_s);
  EXPECT_EQ(parse_link("100gbit").name, "100Gbit");
  for (const char* name : {"1Gbit", "10Gbit", "25Gbit", "40Gbit", "50Gbit", "100Gbit", "200Gbit",
                           "400Gbit", "ib-hdr", "ib-ndr", "pcie4", "pcie5", "nvlink4", "nvlink5"}) {
    EXPECT_GT(parse_link(name).bytes_per_s, 0) << name;
    EXPECT_GT(parse_link(name).latency_s, 0) << name;
  }
}

TEST(Network, ADelayIsAddedToWhatSoftwareTakes) {
  EXPECT_NEAR(parse_link("1Gbit,2ms").latency_s - parse_link("1Gbit").latency_s, 2e-3, 1e-12);
  EXPECT_DOUBLE_EQ(parse_link("1Gbit,2ms").bytes_per_s, parse_link("1Gbit").bytes_per_s);
}

TEST(Network, IsGivenInFigures) {
  EXPECT_NEAR(parse_link("0.1Gbit,10ms").bytes_per_s, 0.1e9 / 8 * 0.94, 1);
  EXPECT_NEAR(parse_link("250Mbit").bytes_per_s, 250e6 / 8 * 0.94, 1);
  EXPECT_DOUBLE_EQ(parse_link("12GB/s,5us").bytes_per_s, 12e9);
  EXPECT_DOUBLE_EQ(parse_link("12GB/s,5us").latency_s, 5e-6);
}

TEST(Network, AHostMayHaveSeveralCards) {
  EXPECT_DOUBLE_EQ(parse_link("8xib-ndr").bytes_per_s, 8 * parse_link("ib-ndr").bytes_per_s);
  EXPECT_DOUBLE_EQ(parse_link("8xib-ndr").latency_s, parse_link("ib-ndr").latency_s);
  EXPECT_DOUBLE_EQ(parse_link("2x1Gbit,2ms").bytes_per_s, 2 * parse_link("1Gbit").bytes_per_s);
  for (const char* text : {"0xib-ndr", "8x", "99xib-ndr", "xib-ndr", "2x2"}) {
    EXPECT_THROW(parse_link(text), UsageError) << text;
  }
}

TEST(Network, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  try {
    parse_link("tokenring");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("tokenring"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("ib-ndr"), std::string::npos);
  }
  for (const char* text : {"", "Gbit", "-1Gbit", "nanGbit", "0Gbit", "1Gbit,fast", "1Gbit,", "1",
                           "1e400Gbit", "nvlink4,-2ms"}) {
    EXPECT_THROW(parse_link(text), UsageError) << text;
  }
}

TEST(Topology, IsReplicasPerHostTimesHosts) {
  EXPECT_EQ(parse_topology("8x4").per_host, 8);
  EXPECT_EQ(parse_topology("8x4").hosts, 4);
  EXPECT_EQ(parse_topology("16").per_host, 16);
  for (const char* text : {"", "x", "0x4", "8x0", "8x", "8x4x2", "-1", "many"}) {
    EXPECT_THROW(parse_topology(text), UsageError) << text;
  }
}

TEST(Devices, AreFoundByNameAndByHardware) {
  EXPECT_EQ(find_device("H100")->name, "h100");
  EXPECT_EQ(find_device("abacus"), nullptr);
  EXPECT_EQ(find_hardware("NVIDIA H200")->name, "h200");
  EXPECT_EQ(find_hardware("NVIDIA A100-SXM4-80GB")->name, "a100");
  EXPECT_EQ(find_hardware("NVIDIA L40S")->name, "l40s");
  EXPECT_EQ(find_hardware("Some CPU, 2 cores"), nullptr);
}

}  // namespace
}  // namespace lockstep
