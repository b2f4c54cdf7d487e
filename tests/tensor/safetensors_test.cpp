#include "lockstep/tensor/safetensors.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <thread>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "file_size_limit.h"
#include "lockstep/tensor/host_file.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

// The bytes of a file with this JSON header and this many bytes of zeros after it.
std::string file_bytes(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
  return bytes + header + std::string(data_bytes, '\0');
}

TensorFile parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "weights");
}

// The message of the DataError that parsing throws; empty if it throws none.
std::string rejection(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TensorFile example() {
  TensorFile file;
  file.tensors["b"] = Tensor::of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  file.tensors["a"] = Tensor::of<std::uint8_t>({7, 8, 9}, {3});
  file.tensors["c"] = Tensor::of<double>({0.5}, {1});
  file.tensors["d"] = Tensor::scalar<std::int64_t>(-5);
  file.tensors["e"] = Tensor(DType::I32, {0, 4});
  file.tensors["f"] = Tensor::scalar(true);
  file.tensors["g"] = Tensor(DType::BF16, {3});
  file.tensors["h"] = Tensor(DType::F16, {1});
  file.metadata = {{"step", "12"}, {"note", "grün \"quoted\""}};
  return file;
}

void expect_same(const TensorFile& a, const TensorFile& b) {
  EXPECT_EQ(a.metadata, b.metadata);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    ASSERT_TRUE(b.tensors.contains(name)) << name;
    EXPECT_TRUE(tensor.same_bits(b.tensors.at(name))) << name;
  }
}

TEST(Safetensors, SavedTensorsAreLoaded) {
  const TemporaryFolder folder;
  save_safetensors(folder / "weights", example());
  expect_same(example(), load_safetensors(folder / "weights"));
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  const TemporaryFolder folder;
  save_safetensors(folder / "weights", {});
  expect_same({}, load_safetensors(folder / "weights"));
}

TEST(Safetensors, TensorsAreAlignedInTheFileAndShareOneBuffer) {
  const TemporaryFolder folder;
  save_safetensors(folder / "weights", example());
  const TensorFile file = load_safetensors(folder / "weights");
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % size_of(tensor.dtype()), 0u) << name;
  }
  EXPECT_EQ(file.tensors.at("d").raw() + 8, file.tensors.at("b").raw())
      << "wide dtypes come first, then names, without a gap";
}

TEST(Safetensors, FilesWrittenByPythonAreRead) {
  const TensorFile file = load_safetensors(LOCKSTEP_SOURCE_DIR "/tests/tensor/python.safetensors");
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"note", "grün"}};
  EXPECT_EQ(file.metadata, metadata);
  ASSERT_EQ(file.tensors.size(), 9u);
  const auto expect = [&](const char* name, const Tensor& expected) {
    EXPECT_TRUE(file.tensors.at(name).same_bits(expected)) << name;
  };
  expect("weight", Tensor::of<float>({0, 0.5, 1, 1.5, 2, 2.5}, {2, 3}));
  expect("double", Tensor::of<double>({1.25, -2.5}, {2}));
  expect("steps", Tensor::scalar<std::int64_t>((std::int64_t{1} << 40) + 7));
  expect("ids", Tensor::of<std::int32_t>({1, -2}, {2, 1}));
  expect("bytes", Tensor::of<std::uint8_t>({0, 128, 255}, {3}));
  const bool mask[] = {true, false, true};
  expect("mask", Tensor::of<bool>(std::span<const bool>(mask), {3}));
  expect("empty", Tensor(DType::F32, {0, 4}));
  const auto bits = [&](const char* name, std::size_t i) {
    std::uint16_t word = 0;
    std::memcpy(&word, file.tensors.at(name).raw() + 2 * i, 2);
    return word;
  };
  EXPECT_EQ(file.tensors.at("half").dtype(), DType::F16);
  EXPECT_EQ(bits("half", 2), 0xB800);
  EXPECT_EQ(file.tensors.at("brain").dtype(), DType::BF16);
  EXPECT_EQ(bits("brain", 0), 0x4040);
}

TEST(Safetensors, TensorsAtOddOffsetsAreAlignedInMemory) {
  const TensorFile file =
      parse(file_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("b":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})",
                       17));
  EXPECT_EQ(file.tensors.at("b").values<double>()[1], 0.0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.tensors.at("b").raw()) % 8, 0u);
}

std::string nested_objects(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += R"({"":)";
  return text;
}

struct BadFile {
  const char* why;  // part of the message
  std::string bytes;
};

std::string one_tensor(const char* fields, std::size_t data_bytes) {
  return file_bytes(fmt::format(R"({{"w":{{{}}}}})", fields), data_bytes);
}

TEST(Safetensors, InvalidFilesAreRejectedWithTheReason) {
  const BadFile files[] = {
      {"too few", ""},
      {"too few", "1234567"},
      {"more than the 100000000 allowed", std::string(8, '\xFF')},
      {"only 1 follow", std::string("\x02\0\0\0\0\0\0\0{", 9)},
      {"does not begin", file_bytes("", 0)},
      {"does not begin", file_bytes(" {}", 0)},
      {"not JSON", file_bytes("{\"w\":", 0)},
      {"not JSON", file_bytes("{} {}", 0)},
      {"not JSON", file_bytes("{\"\xFF\":1}", 0)},
      {"not an object", file_bytes(R"({"w":3})", 0)},
      {"not an object", file_bytes(R"({"__metadata__":"x"})", 0)},
      {"\"step\" is not a string", file_bytes(R"({"__metadata__":{"step":3}})", 0)},
      {"\"w\" twice", file_bytes(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                 R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                                 0)},
      {"\"shape\" twice", one_tensor(R"("dtype":"U8","shape":[0],"shape":[0])", 0)},
      {"no \"dtype\"", one_tensor(R"("shape":[0],"data_offsets":[0,0])", 0)},
      {"no \"data_offsets\"", one_tensor(R"("dtype":"U8","shape":[0])", 0)},
      {"more than", one_tensor(R"("dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1)", 0)},
      {"\"F8_E4M3\"", one_tensor(R"("dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1])", 1)},
      {"not an array", one_tensor(R"("dtype":"U8","shape":1,"data_offsets":[0,1])", 1)},
      {"-1", one_tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", 1)},
      {"1.5", one_tensor(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])", 1)},
      {"not a pair", one_tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])", 1)},
      {"needs 4 bytes", one_tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,3])", 3)},
      {"needs 0 bytes", one_tensor(R"("dtype":"F32","shape":[0],"data_offsets":[4,0])", 4)},
      {"too many elements",
       one_tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0)},
      {"too many elements",
       one_tensor(R"("dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0])", 0)},
      {"not a 63-bit number",
       one_tensor(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1])", 1)},
      {"but 2 follow", one_tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])", 2)},
      {"but 4 follow", one_tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])", 4)},
      {"nests deeper", file_bytes(R"({"w":)" + std::string(100000, '['), 0)},
      {"nests deeper", file_bytes(R"({"__metadata__":)" + nested_objects(100000), 0)},
      {"too many elements",
       one_tensor(R"("dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0])", 0)},
      {"begins at 1", one_tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])", 2)},
      {"begins at 1", file_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                 R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                                 3)},
  };
  for (const BadFile& file : files) {
    const std::string message = rejection(file.bytes);
    EXPECT_NE(message.find(file.why), std::string::npos) << file.why << ": " << message;
    EXPECT_TRUE(message.starts_with("weights: ")) << message;
  }
}

TEST(Safetensors, ABoolIsZeroOrOne) {
  std::string bytes = one_tensor(R"("dtype":"BOOL","shape":[1],"data_offsets":[0,1])", 1);
  EXPECT_EQ(rejection(bytes), "");
  bytes.back() = 2;
  EXPECT_NE(rejection(bytes).find("a BOOL that is 2"), std::string::npos);
}

TEST(Safetensors, EveryTruncationIsRejected) {
  const TemporaryFolder folder;
  save_safetensors(folder / "weights", example());
  std::ifstream stream(folder / "weights", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(rejection(whole.substr(0, size)), "") << size;
  }
}

std::string bytes_of_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(stream)), {});
}

TEST(Safetensors, EveryFlippedBitIsADataError) {
  const TemporaryFolder folder;
  save_safetensors(folder / "weights", example());
  save_safetensors(folder / "none", {});
  for (const char* name : {"weights", "none"}) {
    std::string bytes = bytes_of_file(folder / name);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto flip = static_cast<char>(1 << bit % 8);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
      EXPECT_NE(rejection(bytes), "") << name << ": bit " << bit;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
    }
  }
}

TEST(Safetensors, ADamagedTensorIsNamed) {
  const TemporaryFolder folder;
  save_safetensors(folder / "weights", example());
  std::string bytes = bytes_of_file(folder / "weights");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // in f, the last of the narrowest dtypes
  const std::string message = rejection(bytes);
  EXPECT_NE(message.find("tensor \"f\" is damaged"), std::string::npos) << message;
}

// Another program may load tensors and metadata, change a tensor, and write both.
TEST(Safetensors, ChecksumsKeptByAnotherProgramAreDetected) {
  const std::string header =
      R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("__metadata__":{"crc32c":"00000000","crc32c/w":"00000000","checksums":"crc32c"}})";
  const std::string message = rejection(file_bytes(header, 1));
  EXPECT_NE(message.find("another program"), std::string::npos) << message;
}

TEST(Safetensors, ARowConcatenatesTheValuesOfItsTensors) {
  const TemporaryFolder folder;
  TensorFile file;
  file.tensors["w"] = Tensor::of<double>({0.5}, {1});
  file.rows["r"] = {Tensor::of<float>({1, 2, 3, 4}, {2, 2}), Tensor(DType::F32, {0}),
                    Tensor::scalar(5.0f)};
  save_safetensors(folder / "file", file);
  const TensorFile loaded = load_safetensors(folder / "file");
  EXPECT_TRUE(loaded.tensors.at("r").same_bits(Tensor::of<float>({1, 2, 3, 4, 5}, {5})));
  file.rows["r"].push_back(Tensor::scalar(1.0));
  EXPECT_THROW(save_safetensors(folder / "file", file), UsageError);
}

TEST(Safetensors, TemporariesOfKilledWritersAreRemovedAndThoseOfRunningOnesStay) {
  const TemporaryFolder folder;
  std::ofstream(folder / ".weights.999999.0.tmp") << "half a file";
  std::ofstream(folder / ".weights.backup.tmp") << "a file of the user's";
  std::ofstream(folder / ".other.999999.0.tmp") << "of another file";
  FileWriter living(folder / "weights");
  EXPECT_FALSE(std::filesystem::exists(folder / ".weights.999999.0.tmp"));
  living.append(std::as_bytes(std::span("late")));
  save_safetensors(folder / "weights", example());
  EXPECT_EQ(folder.files(), 4u) << "the two others, that of the running writer and the file";
  expect_same(example(), load_safetensors(folder / "weights"));
  living.commit();
  EXPECT_EQ(bytes_of_file(folder / "weights").substr(0, 4), "late");
  EXPECT_EQ(folder.files(), 3u);
}

// The cleanup may run at any moment while a writer creates and deletes files.
TEST(Safetensors, ConcurrentCleanupRemovesNoFileInUse) {
  const TemporaryFolder folder;
  std::atomic<bool> done = false;
  std::thread cleaner([&] {
    while (!done) remove_stale_temporaries(folder / "weights");
  });
  int lost = 0;
  for (int i = 0; i < 500; ++i) {
    const FileWriter writer(folder / "weights");
    std::this_thread::yield();
    if (folder.files() == 0) ++lost;
  }
  done = true;
  cleaner.join();
  EXPECT_EQ(lost, 0);
}

TEST(Safetensors, ReadingAnythingButAFileIsADataError) {
  const TemporaryFolder folder;
  EXPECT_THROW(load_safetensors(folder / "missing"), DataError);
  EXPECT_THROW(load_safetensors(folder.path()), DataError);
  EXPECT_THROW(load_safetensors("/dev/zero"), DataError);
}

TEST(Safetensors, InvalidNamesAreRefused) {
  const TemporaryFolder folder;
  TensorFile file;
  file.tensors["__metadata__"] = Tensor::scalar(1.0f);
  EXPECT_THROW(save_safetensors(folder / "weights", file), UsageError);
  file.tensors = {{"\xFF", Tensor::scalar(1.0f)}};
  EXPECT_THROW(save_safetensors(folder / "weights", file), UsageError);
  file.tensors = {};
  file.metadata = {{"crc32c/w", "1"}};
  EXPECT_THROW(save_safetensors(folder / "weights", file), UsageError);
  file.metadata = {};
  file.tensors = {{"w", Tensor()}};
  EXPECT_THROW(save_safetensors(folder / "weights", file), UsageError);
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Safetensors, AFullDiskLeavesTheOldFileAndNoTemporary) {
  const TemporaryFolder folder;
  save_safetensors(folder / "weights", example());
  TensorFile larger;
  larger.tensors["w"] = Tensor(DType::F32, {1 << 16});
  std::string message;
  {
    const FileSizeLimit limit(1 << 12);
    try {
      save_safetensors(folder / "weights", larger);
    } catch (const DataError& error) {
      message = error.what();
    }
  }
  EXPECT_NE(message.find((folder / "weights").string()), std::string::npos) << message;
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(folder.files(), 1u);
  expect_same(example(), load_safetensors(folder / "weights"));
}

TensorFile numbered(float number) {
  TensorFile file;
  Tensor tensor(DType::F32, {1 << 16});
  std::ranges::fill(tensor.values<float>(), number);
  file.tensors["w"] = tensor;
  return file;
}

// Saves repeatedly, and writes a byte to `told` after each save.
[[noreturn]] void save_for_ever(const std::filesystem::path& file, int told) {
  for (float number = 1;; ++number) {
    save_safetensors(file, numbered(number));
    if (::write(told, "x", 1) != 1) ::_exit(1);
  }
}

TEST(Safetensors, AWriterKilledAnywhereLeavesACompleteFileAndTheNextCleansUp) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "weights";
  for (int round = 0; round < 12; ++round) {
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t writer = ::fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) save_for_ever(file, told[1]);
    char byte = 0;
    for (int saved = 0; saved <= round % 3; ++saved) ASSERT_EQ(::read(told[0], &byte, 1), 1);
    // A varying delay, so that the kill hits the next save at different points.
    for (int work = 0; work < round; ++work) EXPECT_EQ(numbered(1).tensors.size(), 1u);
    ::kill(writer, SIGKILL);
    ::waitpid(writer, nullptr, 0);
    ::close(told[0]);
    ::close(told[1]);
    const Tensor saved = load_safetensors(file).tensors.at("w");
    EXPECT_EQ(saved.values<float>().front(), saved.values<float>().back());
  }
  save_safetensors(file, example());
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Safetensors, AMissingFolderIsADataError) {
  const TemporaryFolder folder;
  EXPECT_THROW(save_safetensors(folder / "no" / "weights", example()), DataError);
}

TEST(Safetensors, AFolderInPlaceOfTheFileStaysAndNoTemporaryIsLeft) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "weights");
  EXPECT_THROW(save_safetensors(folder / "weights", example()), DataError);
  EXPECT_EQ(folder.files(), 1u);
}

}  // namespace
}  // namespace lockstep
