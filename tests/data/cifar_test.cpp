#include "lockstep/data/sources/cifar.h"

#include <gtest/gtest.h>

#include "data/files.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

using testing::data_error;
using testing::write_bytes;
using testing::zipped;

// Pixel (y, x) of channel c of image `number`.
std::uint8_t pixel(int number, int y, int x, int c) {
  return static_cast<std::uint8_t>(number * 31 + y * 7 + x * 3 + c * 101);
}

std::string record(const std::string& labels, int number) {
  std::string bytes = labels;
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < 32; ++y) {
      for (int x = 0; x < 32; ++x) bytes += static_cast<char>(pixel(number, y, x, c));
    }
  }
  return bytes;
}

void expect_image(const Tensor& images, std::int64_t row, int number) {
  const auto values = images.rows(row, 1);
  const auto bytes = values.values<std::uint8_t>();
  for (int y = 0; y < 32; ++y) {
    for (int x = 0; x < 32; ++x) {
      for (int c = 0; c < 3; ++c) {
        ASSERT_EQ(bytes[static_cast<std::size_t>((y * 32 + x) * 3 + c)], pixel(number, y, x, c));
      }
    }
  }
}

std::string names(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "class " + std::to_string(i) + "\n";
  return text + "\n";
}

void write_cifar10(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (int batch = 1; batch <= 5; ++batch) {
    write_bytes(folder / ("data_batch_" + std::to_string(batch) + ".bin"),
                record({static_cast<char>(batch)}, 2 * batch) +
                    record({static_cast<char>(batch + 4)}, 2 * batch + 1));
  }
  write_bytes(folder / "test_batch.bin", zipped(record({'\0'}, 77)));
  write_bytes(folder / "batches.meta.txt", names(10));
}

TEST(Cifar, Cifar10IsReadInOrder) {
  const TemporaryFolder folder;
  EXPECT_EQ(cifar_kind(folder.path()), std::nullopt);
  write_cifar10(folder / "cifar-10-batches-bin");
  for (const std::filesystem::path& place :
       {std::filesystem::path(folder.path()), folder / "cifar-10-batches-bin"}) {
    EXPECT_EQ(cifar_kind(place), CifarKind::Cifar10);
    const Cifar cifar = load_cifar(place);
    EXPECT_EQ(cifar.train.images.shape(), (Shape{10, 32, 32, 3}));
    EXPECT_TRUE(cifar.train.labels.same_bits(
        Tensor::of<std::uint8_t>({1, 5, 2, 6, 3, 7, 4, 8, 5, 9}, {10})));
    EXPECT_FALSE(cifar.train.coarse_labels.defined());
    for (int row = 0; row < 10; ++row) expect_image(cifar.train.images, row, row + 2);
    EXPECT_EQ(cifar.test.images.shape(), (Shape{1, 32, 32, 3}));
    expect_image(cifar.test.images, 0, 77);
    ASSERT_EQ(cifar.class_names.size(), 10u);
    EXPECT_EQ(cifar.class_names[9], "class 9");
  }
}

TEST(Cifar, Cifar100HasTwoLabels) {
  const TemporaryFolder folder;
  write_bytes(folder / "train.bin", record("\x13\x63", 1) + record({'\0', '\x05'}, 2));
  EXPECT_EQ(cifar_kind(folder.path()), std::nullopt);
  write_bytes(folder / "test.bin", record("\x01\x02", 3));
  EXPECT_EQ(cifar_kind(folder.path()), CifarKind::Cifar100);
  Cifar cifar = load_cifar(folder.path());
  EXPECT_TRUE(cifar.train.coarse_labels.same_bits(Tensor::of<std::uint8_t>({19, 0}, {2})));
  EXPECT_TRUE(cifar.train.labels.same_bits(Tensor::of<std::uint8_t>({99, 5}, {2})));
  expect_image(cifar.train.images, 1, 2);
  expect_image(cifar.test.images, 0, 3);
  EXPECT_TRUE(cifar.class_names.empty());
  write_bytes(folder / "fine_label_names.txt", names(100));
  write_bytes(folder / "coarse_label_names.txt", names(20));
  cifar = load_cifar(folder.path());
  EXPECT_EQ(cifar.class_names.size(), 100u);
  EXPECT_EQ(cifar.coarse_class_names.size(), 20u);
}

TEST(Cifar, ProblemsAreNamed) {
  const TemporaryFolder folder;
  const auto error = [&] { return data_error([&] { load_cifar(folder.path()); }); };
  EXPECT_NE(error().find("holds neither CIFAR-10"), std::string::npos);
  write_cifar10(folder.path());
  EXPECT_EQ(error(), "");
  write_bytes(folder / "batches.meta.txt", names(9));
  EXPECT_EQ(error(),
            (folder / "batches.meta.txt").string() + ": 9 names, but there are 10 classes");
  write_cifar10(folder.path());
  write_bytes(folder / "data_batch_3.bin", record({'\x01'}, 0) + record({'\x0A'}, 0));
  EXPECT_EQ(error(), (folder / "data_batch_3.bin").string() +
                         ": record 1: its label is 10, but there are 10 classes");
  write_bytes(folder / "data_batch_3.bin", record({'\x01'}, 0) + "rest");
  EXPECT_EQ(error(),
            (folder / "data_batch_3.bin").string() +
                ": 3077 bytes are not a multiple of the record size 3073: record 1 is cut short");
  std::filesystem::remove(folder / "data_batch_3.bin");
  EXPECT_EQ(error(), (folder / "data_batch_3.bin").string() +
                         ": cannot be opened: No such file or directory");
  write_cifar10(folder.path());
  write_bytes(folder / "test_batch.bin", zipped(record({'\0'}, 77)).substr(0, 50));
  EXPECT_EQ(error(),
            (folder / "test_batch.bin").string() + ": byte 50: the gzip data is cut short");
}

TEST(Cifar, BytesInMemoryAreReadLikeFiles) {
  const std::string bytes = record("\x13\x63", 1);
  EXPECT_EQ(parse_cifar("", CifarKind::Cifar10, "input").images.shape(), (Shape{0, 32, 32, 3}));
  expect_image(parse_cifar(bytes, CifarKind::Cifar100, "input").images, 0, 1);
  expect_image(parse_cifar(zipped(bytes), CifarKind::Cifar100, "input").images, 0, 1);
  EXPECT_EQ(data_error([&] { parse_cifar(bytes, CifarKind::Cifar10, "input"); }),
            "input: 3074 bytes are not a multiple of the record size 3073: record 1 is cut short");
}

}  // namespace
}  // namespace lockstep
