#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/device/cuda/gpu_code.h"

namespace lockstep {
namespace {

TEST(Device, CountsAllocatedAndFreedBytes) {
  CpuDevice device(3, {0});
  EXPECT_EQ(device.name(), "cpu:3");
  EXPECT_EQ(device.kind(), DeviceKind::Cpu);
  auto first = device.allocate(100);
  {
    auto second = device.allocate(50);
    EXPECT_EQ(device.bytes_in_use(), 150u);
  }
  EXPECT_EQ(device.bytes_in_use(), 100u);
  first.reset();
  EXPECT_EQ(device.bytes_in_use(), 0u);
  EXPECT_EQ(device.peak_bytes(), 150u);
}

TEST(Device, MemoryIsAlignedAndZero) {
  using Allocate = std::shared_ptr<Buffer> (Device::*)(std::size_t);
  for (const Allocate allocate : {&Device::allocate, &Device::allocate_persistent}) {
    for (const std::size_t bytes : {0, 1, 63, 64, 1000, 300'000, 3'000'000}) {
      for (int time = 0; time < 2; ++time) {  // the second may reuse the memory of the first
        const auto buffer = (host().*allocate)(bytes);
        ASSERT_NE(buffer->data(), nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u);
        for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer->data()[i], std::byte{0});
        std::fill_n(buffer->data(), bytes, std::byte{0xff});
      }
    }
  }
}

TEST(Device, ADeviceNeedsACore) {
  EXPECT_THROW(CpuDevice(0, {}), UsageError);
  EXPECT_THROW(make_cpu_devices(0), UsageError);
}

TEST(CpuDevices, DivideTheCoresEvenly) {
  const std::vector<int> cores = available_cores();
  const int count = static_cast<int>(cores.size());
  for (int devices = 1; devices <= count; ++devices) {
    std::multiset<int> used;
    std::size_t least = cores.size();
    std::size_t most = 0;
    for (const auto& device : make_cpu_devices(devices)) {
      used.insert(device->cores().begin(), device->cores().end());
      least = std::min(least, device->cores().size());
      most = std::max(most, device->cores().size());
    }
    EXPECT_EQ(used, std::multiset<int>(cores.begin(), cores.end()));
    EXPECT_LE(most - least, 1u);
  }
}

TEST(CpuDevices, EachHasACoreEvenIfThereAreMoreDevicesThanCores) {
  const int count = static_cast<int>(available_cores().size()) + 3;
  const auto devices = make_cpu_devices(count);
  ASSERT_EQ(devices.size(), static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    EXPECT_EQ(devices[index]->name(), fmt::format("cpu:{}", i));
    EXPECT_EQ(devices[index]->cores().size(), 1u);
  }
}

TEST(CpuDevices, MakingOneCurrentSetsItsNumberOfThreads) {
  const int before = omp_get_max_threads();
  CpuDevice device(0, {0, 0, 0});
  device.make_current();
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(before);
}

TEST(ParallelFor, CoversEveryIndexOnce) {
  const int before = omp_get_max_threads();
  for (int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    for (std::int64_t n : {0, 1, 2, 7, 100, 1001}) {
      for (std::int64_t grain : {0, 1, 3, 1000}) {
        std::vector<int> visits(static_cast<std::size_t>(n));
        parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        EXPECT_EQ(visits, std::vector<int>(static_cast<std::size_t>(n), 1));
      }
    }
  }
  omp_set_num_threads(before);
}

TEST(ParallelFor, SmallLoopsStayOnTheCallingThread) {
  int calls = 0;
  parallel_for(100, 100, [&](std::int64_t begin, std::int64_t end) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
  });
  EXPECT_EQ(calls, 1);
}

TEST(GpuCode, RunsOnItsOwnGenerationOrIfItIsVirtual) {
  const auto runs = [](int major, int minor, const char* architectures) {
    return why_no_code_for({.model = "GPU", .major = major, .minor = minor}, architectures).empty();
  };
  EXPECT_TRUE(runs(8, 0, "80-real 90-real"));
  EXPECT_TRUE(runs(8, 6, "80-real"));  // newer, of the same generation
  EXPECT_TRUE(runs(9, 0, "80-real 90-real"));
  EXPECT_FALSE(runs(8, 0, "86-real"));  // older than the code
  EXPECT_FALSE(runs(9, 0, "80-real"));  // of another generation
  EXPECT_FALSE(runs(10, 0, "80-real 90-real"));
  EXPECT_TRUE(runs(10, 0, "80-real 90-virtual"));
  EXPECT_TRUE(runs(10, 0, "90"));  // both forms
  EXPECT_FALSE(runs(7, 0, "80-real 90-real 90-virtual"));
  EXPECT_FALSE(runs(10, 0, "90a-real"));
  EXPECT_TRUE(runs(12, 0, "native"));
}

TEST(GpuCode, NamesTheGpuAndHowToBuildForIt) {
  const std::string why =
      why_no_code_for({.model = "Tesla V100", .major = 7, .minor = 0}, "90-real");
  EXPECT_NE(why.find("Tesla V100 has compute capability 7.0"), std::string::npos) << why;
  EXPECT_NE(why.find("(90-real)"), std::string::npos) << why;
  EXPECT_NE(why.find("-DCMAKE_CUDA_ARCHITECTURES=70"), std::string::npos) << why;
}

}  // namespace
}  // namespace lockstep
