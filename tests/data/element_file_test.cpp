#include "lockstep/data/pipeline/element_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "data/positions.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/data/datasets.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

void write(const std::filesystem::path& path, const std::vector<Element>& elements,
           std::string_view head = "a head") {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ASSERT_GE(descriptor, 0);
  ElementFileWriter writer(descriptor, path, head);
  for (const Element& element : elements) writer.append(element);
  writer.finish();
  ::close(descriptor);
}

std::vector<Element> samples(std::int64_t count) {
  return all_of(datasets::synthetic({{DType::F32, {3, 5}, true},
                                     {DType::I64, {}},
                                     {DType::U8, {7}},
                                     {DType::BF16, {0, 2}},
                                     {DType::Bool, {1}}},
                                    {.count = count}),
                9);
}

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::shared_ptr<const ElementFile> open(const std::string& bytes) {
  return std::make_shared<const ElementFile>(view_bytes(bytes, "the file"));
}

// Reads all elements; returns the number read before a DataError, or -1 if there was none.
std::int64_t read_until_error(const std::string& bytes) {
  std::int64_t read = 0;
  try {
    const auto file = open(bytes);
    ElementFile::Reader reader(file);
    for (; read < file->count(); ++read) reader.read(read);
  } catch (const DataError& error) {
    EXPECT_TRUE(contains(error.what(), "the file")) << error.what();
    return read;
  }
  return -1;
}

TEST(ElementFile, ReadsElementsInAnyOrder) {
  TemporaryFolder folder;
  const std::vector<Element> elements = samples(300);
  write(folder / "file", elements);
  const auto file = std::make_shared<const ElementFile>(folder / "file");
  EXPECT_EQ(file->head(), "a head");
  ASSERT_EQ(file->count(), 300);
  ElementFile::Reader reader(file);
  for (const std::int64_t number : {0, 1, 2, 299, 7, 8, 150, 149, 0}) {
    EXPECT_TRUE(same_element(reader.read(number), elements[static_cast<std::size_t>(number)]));
  }
}

TEST(ElementFile, LargeAndEmptyElementsAreReadBack) {
  TemporaryFolder folder;
  std::vector<Element> elements =
      all_of(datasets::synthetic({{DType::F32, {300'000}}, {DType::I32, {}}}, {.count = 3}));
  elements.insert(elements.begin(), Element());
  elements.push_back({Tensor(DType::F32, {0})});
  write(folder / "file", elements, "");
  const auto file = std::make_shared<const ElementFile>(folder / "file");
  ElementFile::Reader reader(file);
  for (std::int64_t i = 0; i < file->count(); ++i) {
    EXPECT_TRUE(same_element(reader.read(i), elements[static_cast<std::size_t>(i)]));
  }
  write(folder / "none", {});
  EXPECT_EQ(ElementFile(folder / "none").count(), 0);
}

TEST(ElementFile, HeldElementsAreNotOverwritten) {
  TemporaryFolder folder;
  const std::vector<Element> elements = samples(100);
  write(folder / "file", elements);
  ElementFile::Reader reader(std::make_shared<const ElementFile>(folder / "file"));
  std::vector<Element> held;
  for (std::int64_t i = 0; i < 100; ++i) held.push_back(reader.read(i));
  EXPECT_TRUE(same_elements(held, elements));
}

TEST(ElementFile, TensorsAreAligned) {
  TemporaryFolder folder;
  write(folder / "file", samples(20));
  ElementFile::Reader reader(std::make_shared<const ElementFile>(folder / "file"));
  for (std::int64_t i = 0; i < 20; ++i) {
    for (const Tensor& tensor : reader.read(i)) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % 64, 0u);
    }
  }
}

TEST(ElementFile, EveryFlippedBitIsNoticed) {
  TemporaryFolder folder;
  write(folder / "file", samples(3));
  const std::string good = bytes_of_file(folder / "file");
  // Offsets in the index only matter for reads out of order; those below check them.
  const std::size_t index = good.size() - (2 * 8 + 4 + 16) - 3 * 8;
  for (std::size_t at = 0; at < good.size(); ++at) {
    if (at >= index && at < index + 24) continue;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
    EXPECT_GE(read_until_error(bad), 0) << "byte " << at << " of " << good.size();
  }
  for (std::size_t at = index + 8; at < index + 24; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
    ElementFile::Reader reader(open(bad));
    EXPECT_THROW(
        {
          reader.read(2);
          reader.read(1);
        },
        DataError)
        << "byte " << at;
  }
}

// A file can be wrong although all its checksums are right.
TEST(ElementFile, AShapeThatNoTensorCanHaveIsADataError) {
  TemporaryFolder folder;
  write(folder / "file", {{Tensor(DType::U8, {0, 8, 8})}});
  std::string bytes = bytes_of_file(folder / "file");
  constexpr std::size_t kRecord = 16 + 12 + 6;  // after the magic and the head
  constexpr std::size_t kElement = kRecord + 24;
  constexpr std::size_t kLength = 8 * 8;  // epoch, number, components; dtype, rank, extents
  EXPECT_EQ(read_until_error(bytes), -1);
  for (const std::size_t extent : {6, 7}) bytes[kElement + 8 * extent + 4] = 1;  // 2^32 more
  const std::uint32_t checksum = crc32c(std::string_view(bytes).substr(kElement, kLength));
  for (std::size_t i = 0; i < 4; ++i) {
    bytes[kRecord + 20 + i] = static_cast<char>(checksum >> 8 * i & 0xFF);
  }
  EXPECT_EQ(read_until_error(bytes), 0);
}

TEST(ElementFile, EveryTruncationIsNoticed) {
  TemporaryFolder folder;
  write(folder / "file", samples(3));
  const std::string good = bytes_of_file(folder / "file");
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_GE(read_until_error(good.substr(0, size)), 0) << size;
  }
  EXPECT_EQ(read_until_error(good), -1);
  EXPECT_GE(read_until_error(good + "x"), 0);
  EXPECT_THROW(ElementFile(folder / "missing"), DataError);
  EXPECT_THROW(ElementFile(folder.path()), DataError);
}

TEST(ElementFile, ADamagedRecordIsNamedAndTheOthersCanBeRead) {
  TemporaryFolder folder;
  const std::vector<Element> elements = samples(3);
  write(folder / "file", elements);
  std::string bytes = bytes_of_file(folder / "file");
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  ElementFile::Reader reader(open(bytes));
  int damaged = 0;
  for (std::int64_t i = 0; i < 3; ++i) {
    try {
      EXPECT_TRUE(same_element(reader.read(i), elements[static_cast<std::size_t>(i)]));
    } catch (const DataError& error) {
      ++damaged;
      EXPECT_TRUE(contains(error.what(), fmt::format("record {}", i))) << error.what();
    }
  }
  EXPECT_EQ(damaged, 1);
}

}  // namespace
}  // namespace lockstep
