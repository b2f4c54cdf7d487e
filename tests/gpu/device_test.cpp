// Devices by name, memory, streams, recordings.
#include "gpu/gpu.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

TEST(GpuDevice, IsFoundByItsName) {
  LOCKSTEP_NEEDS_GPU();
  EXPECT_EQ(make_cuda_device("cuda:0/1")->name(), "cuda:0/1");
  EXPECT_GT(gpu_of(gpu()).multiprocessors, 0);
  EXPECT_GT(free_gpu_bytes(gpu()), 0u);
  EXPECT_THROW(make_cuda_device("cuda:99"), UsageError);
}

TEST(GpuDevice, MemoryIsZeroedAndCopied) {
  LOCKSTEP_NEEDS_GPU();
  const auto memory = gpu().allocate(1000);
  std::vector<std::byte> bytes(1000, std::byte{1});
  gpu().copy(bytes.data(), memory->data(), bytes.size());
  for (const std::byte byte : bytes) ASSERT_EQ(byte, std::byte{0});
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  gpu().copy(memory->data(), bytes.data(), bytes.size());
  std::vector<std::byte> back(1000);
  gpu().copy(back.data(), memory->data(), back.size());
  EXPECT_EQ(back, bytes);
}

TEST(GpuDevice, ARecordingRunsOnlyWhenItIsLaunched) {
  LOCKSTEP_NEEDS_GPU();
  const auto from = gpu().allocate_host(64);
  const auto to = gpu().allocate_host(64);
  const auto middle = gpu().allocate(64);
  const auto stream = gpu().make_stream();
  const auto side = gpu().make_stream();
  const auto recording = stream->record([&] {
    side->wait_for(*stream);
    side->copy(middle->data(), from->data(), 64);
    stream->wait_for(*side);
    stream->copy(to->data(), middle->data(), 64);
  });
  ASSERT_NE(recording, nullptr);
  for (int round = 1; round < 4; ++round) {
    from->data()[5] = static_cast<std::byte>(round);
    stream->synchronize();
    EXPECT_EQ(to->data()[5], static_cast<std::byte>(round - 1));
    recording->launch(*stream);
    stream->synchronize();
    EXPECT_EQ(to->data()[5], static_cast<std::byte>(round));
  }
}

}  // namespace
}  // namespace lockstep
