// How many cores a control group grants.
#include "lockstep/device/cpu/core_quota.h"

#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.h"

namespace lockstep {
namespace {

class CoreQuota : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  int quota() const { return core_quota(folder_.path()); }
  TemporaryFolder folder_;
};

TEST_F(CoreQuota, IsTheLeastOfTheGroupAndThoseAboveIt) {
  write("proc/self/cgroup", "0::/machine/job\n");
  write("sys/fs/cgroup/machine/job/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0);
  write("sys/fs/cgroup/machine/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 3);
  write("sys/fs/cgroup/machine/job/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
}

// In a container the group is the root of what it sees.
TEST_F(CoreQuota, OfTheRootCounts) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 1);
}

TEST_F(CoreQuota, OfVersionOneIsInTwoFiles) {
  write("proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/machine/job\n");
  write("sys/fs/cgroup/cpu/machine/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/machine/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0);
  write("sys/fs/cgroup/cpu/machine/cpu.cfs_quota_us", "150000\n");
  write("sys/fs/cgroup/cpu/machine/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(quota(), 3);
}

TEST_F(CoreQuota, WhereNothingIsSaidThereIsNone) {
  EXPECT_EQ(quota(), 0);
  write("proc/self/cgroup", "4:memory:/a\n");
  EXPECT_EQ(quota(), 0);
}

TEST_F(CoreQuota, SomeCoresAreSideBySide) {
  const std::vector<int> cores = {4, 5, 6, 7};
  EXPECT_EQ(some_cores(cores, 2, 1), (std::vector<int>{5, 6}));
  EXPECT_EQ(some_cores(cores, 2, 3), (std::vector<int>{4, 7}));
  EXPECT_EQ(some_cores(cores, 9, 0), cores);
}

}  // namespace
}  // namespace lockstep
