#include "lockstep/data/sources/idx.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "lockstep/data/datasets.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

std::string header(int type, const std::vector<std::uint32_t>& dims) {
  std::string bytes{0, 0, static_cast<char>(type), static_cast<char>(dims.size())};
  for (std::uint32_t extent : dims) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<char>(extent >> shift));
  }
  return bytes;
}

std::string zipped(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

Tensor parse(const std::string& bytes) {
  return parse_idx(std::as_bytes(std::span(bytes)), "digits");
}

std::string rejection(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

void write(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

TEST(Idx, EveryTypeIsRead) {
  using namespace std::string_literals;
  EXPECT_TRUE(parse(header(8, {1, 3}) + "\x01\x80\xFF")
                  .same_bits(Tensor::of<std::uint8_t>({1, 128, 255}, {1, 3})));
  EXPECT_TRUE(parse(header(11, {2}) + "\x01\x02\xFF\xFE")
                  .same_bits(Tensor::of<std::int32_t>({258, -2}, {2})));
  EXPECT_TRUE(parse(header(12, {2}) + "\x00\x00\x01\x00\xFF\xFF\xFF\xFF"s)
                  .same_bits(Tensor::of<std::int32_t>({256, -1}, {2})));
  EXPECT_TRUE(
      parse(header(13, {1}) + "\xBF\xC0\x00\x00"s).same_bits(Tensor::of<float>({-1.5f}, {1})));
  EXPECT_TRUE(parse(header(14, {1}) + "\x3F\xE0\x00\x00\x00\x00\x00\x00"s)
                  .same_bits(Tensor::of<double>({0.5}, {1})));
  EXPECT_TRUE(parse(header(8, {0, 28})).same_bits(Tensor(DType::U8, {0, 28})));
}

TEST(Idx, CompressedFilesAreReadToo) {
  const std::string plain = header(8, {1000}) + std::string(1000, '\x05');
  EXPECT_TRUE(parse(zipped(plain)).same_bits(parse(plain)));
  const std::string members = zipped(plain.substr(0, 500)) + zipped(plain.substr(500));
  EXPECT_TRUE(parse(members).same_bits(parse(plain)));
  const std::string large = header(8, {1000, 1000}) + std::string(1'000'000, '\x05');
  EXPECT_TRUE(parse(zipped(large)).same_bits(parse(large)));
}

struct BadFile {
  const char* why;
  std::string bytes;
};

TEST(Idx, InvalidFilesAreRejectedWithTheReason) {
  const std::string whole = header(8, {3}) + "abc";
  const std::string packed = zipped(whole);
  std::string damaged = packed;
  damaged[damaged.size() - 6] ^= 1;  // in the checksum
  const BadFile files[] = {
      {"0 bytes, fewer than 4", ""},
      {"begins with 0x89504e47", "\x89PNG"},
      {"no element type 0x07", header(7, {1}) + "a"},
      {"signed bytes", header(9, {1}) + "a"},
      {"no axes", header(8, {})},
      {"has 12 bytes, the file 8", header(8, {1, 1}).substr(0, 8)},
      {"needs 3 bytes after the header, but 2 follow", header(8, {3}) + "ab"},
      {"needs 3 bytes after the header, but 4 follow", header(8, {3}) + "abcd"},
      {"needs 12 bytes after the header, but 3 follow", header(12, {3}) + "abc"},
      {"too many elements", header(8, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF})},
      {"too many elements", header(8, {0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF})},
      {"cut short", packed.substr(0, packed.size() - 1)},
      {"cut short", packed.substr(0, 5)},
      {"damaged", damaged},
      {"4 bytes follow the end", packed + "rest"},
      {"but 2 follow", zipped(header(8, {3}) + "ab")},
  };
  for (const BadFile& file : files) {
    const std::string message = rejection(file.bytes);
    EXPECT_NE(message.find(file.why), std::string::npos) << file.why << ": " << message;
    EXPECT_TRUE(message.starts_with("digits: ")) << message;
  }
}

// A folder of two training and one test image.
void write_images(const TemporaryFolder& folder) {
  write(folder / "train-images-idx3-ubyte",
        header(8, {2, 1, 2}) + std::string("\x00\xFF\x33\x66", 4));
  write(folder / "train-labels-idx1-ubyte.gz", zipped(header(8, {2}) + "\x03\x01"));
  write(folder / "t10k-images-idx3-ubyte.gz", zipped(header(8, {1, 1, 2}) + "\x01\x02"));
  write(folder / "t10k-labels-idx1-ubyte", header(8, {1}) + "\x09");
}

std::string directory_error(const TemporaryFolder& folder) {
  try {
    datasets::idx_directory(folder.path());
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(IdxDirectory, ImagesBecomeFloatsFromZeroToOne) {
  const TemporaryFolder folder;
  write_images(folder);
  EXPECT_TRUE(datasets::is_idx_directory(folder.path()));
  const auto [train, test] = datasets::idx_directory(folder.path());
  const std::vector<ElementSpec> spec{{DType::F32, {1, 2, 1}}, {DType::I32, {}}};
  EXPECT_EQ(train.element_spec(), spec);
  EXPECT_EQ(train.cardinality(), 2);
  EXPECT_EQ(test.cardinality(), 1);
  EXPECT_EQ(datasets::count_classes(train), 4);
  const auto batches = train.batch(2).iterator();
  const Element batch = *batches->next();
  EXPECT_EQ(batch[0].shape(), (Shape{2, 1, 2, 1}));
  EXPECT_FLOAT_EQ(batch[0].values<float>()[1], 1.0f);
  EXPECT_FLOAT_EQ(batch[0].values<float>()[2], 0.2f);
  EXPECT_TRUE(batch[1].same_bits(Tensor::of<std::int32_t>({3, 1}, {2})));
  const auto single = train.iterator();
  const Element element = *single->next();
  EXPECT_TRUE(element[0].same_bits(Tensor::of<float>({0, 1}, {1, 2, 1})));
  EXPECT_EQ(element[1].item(), 3);
}

TEST(IdxDirectory, ProblemsAreNamed) {
  const TemporaryFolder folder;
  EXPECT_FALSE(datasets::is_idx_directory(folder.path()));
  EXPECT_FALSE(datasets::is_idx_directory(folder / "none"));
  EXPECT_NE(directory_error(folder).find("no train-images-idx file"), std::string::npos);
  write_images(folder);
  EXPECT_EQ(directory_error(folder), "");
  write(folder / "train-images-idx3-ubyte.gz", "not read: the plain file exists");
  EXPECT_EQ(directory_error(folder), "");
  write(folder / "train-labels-idx1-ubyte", header(8, {3}) + "abc");
  EXPECT_NE(directory_error(folder).find("2 images, but"), std::string::npos);
  write(folder / "train-labels-idx1-ubyte", header(12, {2}) + "\xFF\xFF\xFF\xFF\x01\x01\x01\x01");
  EXPECT_NE(directory_error(folder).find("label 0 is -1"), std::string::npos);
  write(folder / "train-labels-idx1-ubyte", header(8, {1, 2}) + "ab");
  EXPECT_NE(directory_error(folder).find("one axis of integers, not u8 (1, 2)"), std::string::npos);
  write(folder / "train-labels-idx1-ubyte", header(8, {2}) + "ab");
  write(folder / "train-images-idx1-ubyte", header(8, {2}) + "ab");
  EXPECT_NE(directory_error(folder).find("remove one"), std::string::npos);
}

TEST(FashionMnist, WithoutItsFilesSaysWhatToInstall) {
  const TemporaryFolder folder;
  try {
    datasets::fashion_mnist({.directory = folder.path()});
    FAIL() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("apt install dataset-fashion-mnist"),
              std::string::npos);
  }
}

TEST(FashionMnist, IsReadFromDebiansPackage) {
  if (!datasets::is_idx_directory(datasets::FashionMnistOptions{}.directory)) {
    GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  }
  auto [train, test] = datasets::fashion_mnist();
  EXPECT_EQ(train.cardinality(), 60'000);
  EXPECT_EQ(test.cardinality(), 10'000);
  EXPECT_EQ(train.element_spec()[0], (ElementSpec{DType::F32, {28, 28, 1}}));
  std::vector<int> of_class(10);
  const auto batches = test.batch(500).iterator();
  while (const auto batch = batches->next()) {
    for (std::int32_t label : (*batch)[1].values<std::int32_t>()) {
      ++of_class.at(static_cast<std::size_t>(label));
    }
  }
  EXPECT_EQ(of_class, std::vector<int>(10, 1000));
}

TEST(Synthetic, IsNoiseThatDependsOnlyOnShapeAndSeed) {
  const datasets::SyntheticOptions options{
      .sample = {5, 5, 3}, .count = 1001, .classes = 7, .seed = 2};
  const auto first = datasets::synthetic(options).batch(1001).iterator();
  const auto second = datasets::synthetic(options).batch(1001).iterator();
  const Element element = *first->next();
  EXPECT_EQ(element[0].shape(), (Shape{1001, 5, 5, 3}));
  EXPECT_TRUE(element[0].same_bits((*second->next())[0]));
  double sum = 0, squares = 0;
  for (float value : element[0].values<float>()) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / 75'075, 0, 0.02);
  EXPECT_NEAR(squares / 75'075, 1, 0.02);
  EXPECT_EQ(datasets::count_classes(datasets::synthetic(options)), 7);
  EXPECT_EQ(datasets::count_classes(datasets::synthetic({.count = 0})), 0);
  EXPECT_THROW(datasets::synthetic({.count = -1}), UsageError);
}

}  // namespace
}  // namespace lockstep
