// Tensors on a device whose memory the host cannot read.
#include <gtest/gtest.h>

#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

// Stores every byte inverted, so that reading without copy() gives wrong values.
class FarDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::Cuda; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override { return host().make_stream(); }
  std::unique_ptr<Event> make_event(bool timed) override { return host().make_event(timed); }
  void make_current() override {}
  void pin_thread() override {}
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    for (std::size_t i = 0; i < bytes; ++i) to[i] = ~from[i];
  }
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override {
    return host().allocate(bytes);
  }

 private:
  std::byte* allocate_bytes(std::size_t bytes) override {
    auto* data = new std::byte[bytes];
    std::fill(data, data + bytes, ~std::byte{});
    return data;
  }
  void free_bytes(std::byte* data, std::size_t) override { delete[] data; }

  std::string name_ = "far:0";
};

class DeviceMemory : public ::testing::Test {
 protected:
  Tensor there(const Tensor& tensor) {
    Tensor copy(tensor.dtype(), tensor.shape(), device_);
    copy.copy_from(tensor);
    return copy;
  }

  FarDevice device_;
  Tensor here_ = Tensor::from({{1.5, -2.0}, {3.0, 4.25}});
};

TEST_F(DeviceMemory, IsPrintedComparedAndReadThroughCopies) {
  const Tensor far = there(here_);
  EXPECT_EQ(far.str(), here_.str());
  EXPECT_EQ(fmt::format("{}", far[1]), here_[1].str());
  EXPECT_EQ(far[1][0].item(), 3.0);
  EXPECT_TRUE(far.same_bits(here_));
  EXPECT_TRUE(here_.same_bits(far));
  EXPECT_TRUE(on_host(far).same_bits(here_));
  EXPECT_TRUE(on_host(far.cast(DType::I32)).same_bits(here_.cast(DType::I32)));
  const Tensor clone = far.clone();
  EXPECT_EQ(&clone.buffer()->device(), &device_);
  EXPECT_TRUE(clone.same_bits(here_));
  EXPECT_TRUE(concatenate_rows(std::vector{here_, far}, "test").rows(2, 2).same_bits(here_));
  EXPECT_EQ(to_categorical(there(Tensor::from({1, 0}))).str(),
            to_categorical(Tensor::from({1, 0})).str());
}

TEST_F(DeviceMemory, RefusesDirectAccessAndSaysWhatToDo) {
  Tensor far = there(here_);
  try {
    far.values<float>();
    FAIL() << "the host got a pointer into the device's memory";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[tensor] its elements are on far:0, which the host cannot read: use "
                 "on_host(tensor)");
  }
  EXPECT_THROW(far.at<float>(0, 1), UsageError);
}

}  // namespace
}  // namespace lockstep
