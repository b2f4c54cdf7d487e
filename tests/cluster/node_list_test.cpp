// Slurm's lists of nodes and of tasks per node.
#include "lockstep/cluster/resolvers/node_list.h"

#include <gtest/gtest.h>

#include "cluster/resolved.h"

namespace lockstep {
namespace {

std::string names(const std::string& list) {
  std::string all;
  for (const std::string& name : expand_node_list(list, "L"))
    all += (all.empty() ? "" : " ") + name;
  return all;
}

TEST(NodeList, IsExpandedAsSlurmDoes) {
  EXPECT_EQ(names("login"), "login");
  EXPECT_EQ(names("n[001-003,07],gpu-[1-2]-x"), "n001 n002 n003 n07 gpu-1-x gpu-2-x");
  EXPECT_EQ(names("n[8-11]"), "n8 n9 n10 n11");
  EXPECT_EQ(names("n[08-11]"), "n08 n09 n10 n11");
  EXPECT_EQ(names("n[098-101,7]"), "n098 n099 n100 n101 n7");
  EXPECT_EQ(names("rack[0-1]n[0-2]"), "rack0n0 rack0n1 rack0n2 rack1n0 rack1n1 rack1n2");
  EXPECT_EQ(names("[1-2]a,b.example.org"), "1a 2a b.example.org");
  EXPECT_EQ(names("ip-10-0-0-[1,3],ip-10-0-1-4"), "ip-10-0-0-1 ip-10-0-0-3 ip-10-0-1-4");
}

TEST(NodeList, WhatIsNoListIsRefused) {
  for (const char* list : {"",         ",",
                           "a,",       ",a",
                           "a,,b",     "n[",
                           "n[]",      "n[1",
                           "n[1-]",    "n[-1]",
                           "n[1,]",    "n[3-1]",
                           "n]",       "n[1]]",
                           "n[[1]]",   "n[a]",
                           "n[1-2-3]", "a b",
                           "n[1 -2]",  "-n",
                           "n/1",      "n[9999999999999999999]"}) {
    EXPECT_THROW(expand_node_list(list, "L"), UsageError) << list;
  }
}

TEST(NodeList, OneThatStandsForBillionsIsRefusedNotExpanded) {
  for (const char* list : {"n[0-99999999]", "n[0-999][0-999][0-999]", "n[0-65535],m",
                           "n[0-999999999999999999]", "a[0-60000],b[0-60000]"}) {
    EXPECT_THROW(expand_node_list(list, "L"), UsageError) << list;
  }
  EXPECT_EQ(expand_node_list("n[0-65535]", "L").size(), kMaxNodes);
  // 2^2000 names: neither their number nor the recursion over them may overflow.
  std::string deep = "n";
  for (int i = 0; i < 2000; ++i) deep += "[0-1]";
  EXPECT_THROW(expand_node_list(deep, "L"), UsageError);
}

TEST(NodeList, AnErrorNamesTheVariableAndThePlace) {
  try {
    expand_node_list("n[1-2", "SLURM_JOB_NODELIST");
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    expect_all_in(error.what(), {"SLURM_JOB_NODELIST", "'n[1-2'", "character 6"});
  }
}

TEST(TasksPerNode, AreExpandedAsSlurmDoes) {
  EXPECT_EQ(expand_tasks_per_node("2(x3),1", "T"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("4", "T"), (std::vector<int>{4}));
  EXPECT_EQ(expand_tasks_per_node("1,2(x2),3", "T"), (std::vector<int>{1, 2, 2, 3}));
  for (const char* text : {"", "a", "2(3)", "2(x", "2(x3", "2(x)", "2x3", "2,", ",2", "-1",
                           "2(x3)1", "1(x99999999)", "1(x40000),1(x40000)", "99999999999"}) {
    EXPECT_THROW(expand_tasks_per_node(text, "T"), UsageError) << text;
  }
}

}  // namespace
}  // namespace lockstep
