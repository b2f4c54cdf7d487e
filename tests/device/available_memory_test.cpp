// How much memory is left, read from trees of files like those in /proc and /sys.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/device/cpu/memory.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class AvailableMemory : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  void group(const std::string& path, const std::string& limit, std::size_t used,
             const std::string& stat = "") {
    const std::string folder = "sys/fs/cgroup" + path;
    write(folder + "/memory.max", limit);
    write(folder + "/memory.current", std::to_string(used));
    write(folder + "/memory.stat", stat);
  }
  static std::string mib(std::size_t count) { return std::to_string(count * kMiB); }

  TemporaryFolder temporary_;
  std::filesystem::path root_ = temporary_.path();
};

TEST_F(AvailableMemory, IsWhatTheTightestEnclosingGroupHasLeft) {
  write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB");
  EXPECT_EQ(available_memory(root_), std::size_t{8000000} * 1024);
  write("proc/self/cgroup", "0::/pod/service/worker");
  group("/pod/service/worker", "max", 10 * kMiB);
  EXPECT_EQ(available_memory(root_), std::size_t{8000000} * 1024);
  group("/pod/service", mib(500), 100 * kMiB);
  EXPECT_EQ(available_memory(root_), 400 * kMiB);
  group("/pod", mib(600), 450 * kMiB);  // other services use some of it
  EXPECT_EQ(available_memory(root_), 150 * kMiB);
  group("/other", mib(20), 0);
  EXPECT_EQ(available_memory(root_), 150 * kMiB);
  group("", mib(120), 20 * kMiB);  // in a container the process's group may be the root
  EXPECT_EQ(available_memory(root_), 100 * kMiB);
  group("/pod", mib(600), 700 * kMiB);
  EXPECT_EQ(available_memory(root_), 0u);
}

TEST_F(AvailableMemory, CountsReclaimableButNotSharedMemory) {
  write("proc/self/cgroup", "0::/a");
  group("/a", mib(1000), 900 * kMiB,
        "anon " + mib(300) + "\nfile " + mib(500) + "\nshmem " + mib(200) + "\nslab " + mib(90) +
            "\nslab_reclaimable " + mib(40) + "\nslab_unreclaimable " + mib(50));
  EXPECT_EQ(available_memory(root_), (1000 - 900 + (500 - 200) + 40) * kMiB);
}

TEST_F(AvailableMemory, ReadsCgroupsOfVersionOneToo) {
  write("proc/self/cgroup", "5:cpu,memory:/a/b\n4:cpuset:/c\n0::/d");
  for (const char* path : {"/a/b", "/a", ""}) {
    const std::string folder = std::string("sys/fs/cgroup/memory") + path;
    write(folder + "/memory.limit_in_bytes", "9223372036854771712");
    write(folder + "/memory.usage_in_bytes", mib(300));
  }
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", mib(400));
  write("sys/fs/cgroup/memory/a/memory.stat",
        "total_cache " + mib(90) + "\ntotal_shmem " + mib(60));
  EXPECT_EQ(available_memory(root_), 130 * kMiB);
}

TEST_F(AvailableMemory, TheMachinesMemoryIsTheTightestLimitAboveTheProcess) {
  EXPECT_EQ(machine_memory(root_), kUnknownMemory);
  write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB");
  EXPECT_EQ(machine_memory(root_), std::size_t{9000000} * 1024);
  write("proc/self/cgroup", "0::/pod/service");
  group("/pod/service", "max", 10 * kMiB);
  EXPECT_EQ(machine_memory(root_), std::size_t{9000000} * 1024);
  group("/pod", mib(600), 450 * kMiB);  // what is used of it does not count
  EXPECT_EQ(machine_memory(root_), 600 * kMiB);
  group("/pod/service", mib(500), 0);
  EXPECT_EQ(machine_memory(root_), 500 * kMiB);
  group("", mib(120), 20 * kMiB);
  EXPECT_EQ(machine_memory(root_), 120 * kMiB);
}

TEST_F(AvailableMemory, TheMachinesMemoryKnowsTheFirstVersionOfGroups) {
  write("proc/meminfo", "MemTotal: 9000000 kB");
  write("proc/self/cgroup", "5:cpu,memory:/a/b\n0::/d");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(machine_memory(root_), std::size_t{9000000} * 1024);
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", mib(400));
  write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", mib(700));
  EXPECT_EQ(machine_memory(root_), 400 * kMiB);
}

TEST_F(AvailableMemory, IsUnknownWhereTheSystemDoesNotSay) {
  EXPECT_EQ(available_memory(root_), kUnknownMemory);
  write("proc/self/cgroup", "0::/../../a\nnot a valid line");
  write("sys/fs/cgroup/memory.max", "max");
  EXPECT_EQ(available_memory(root_), kUnknownMemory);
}

}  // namespace
}  // namespace lockstep
