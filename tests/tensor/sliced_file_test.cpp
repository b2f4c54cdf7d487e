#include "lockstep/tensor/sliced_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "lockstep/base/error.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

Tensor numbers(Shape shape) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), 1.0f);
  return Tensor::of(values, std::move(shape));
}

// The submatrix that begins at (row, column).
Tensor box_of(const Tensor& matrix, std::int64_t row, std::int64_t column, std::int64_t rows,
              std::int64_t columns) {
  std::vector<float> values;
  for (std::int64_t r = row; r < row + rows; ++r) {
    for (std::int64_t c = column; c < column + columns; ++c) {
      values.push_back(matrix.values<float>()[static_cast<std::size_t>(r * matrix.shape()[1] + c)]);
    }
  }
  return Tensor::of(values, {rows, columns});
}

TensorSlice slice_of(const Tensor& matrix, std::int64_t row, std::int64_t column, std::int64_t rows,
                     std::int64_t columns) {
  return {.name = "w",
          .whole = matrix.shape(),
          .begin = {row, column},
          .value = box_of(matrix, row, column, rows, columns)};
}

TensorFile index_contents() {
  return {.tensors = {{"step", Tensor::scalar<std::int64_t>(7)}}, .metadata = {{"kind", "test"}}};
}

// Saves each list of slices in a separate file.
void save(const std::filesystem::path& index,
          const std::vector<std::vector<TensorSlice>>& writers) {
  const std::int64_t number = next_save(index);
  std::vector<SliceFile> files;
  for (std::size_t i = 0; i < writers.size(); ++i) {
    files.push_back(write_slices(
        slice_file(index, number, static_cast<int>(i), static_cast<int>(writers.size())),
        writers[i]));
  }
  write_index(index, number, index_contents(), files);
}

template <class Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no such error";
}

const Tensor kMatrix = numbers({6, 9});

std::vector<std::vector<TensorSlice>> by_rows() {
  return {{slice_of(kMatrix, 0, 0, 2, 9)},
          {slice_of(kMatrix, 2, 0, 2, 9)},
          {slice_of(kMatrix, 4, 0, 2, 9)}};
}

std::vector<std::vector<TensorSlice>> by_columns() {
  return {{slice_of(kMatrix, 0, 0, 6, 4)},
          {slice_of(kMatrix, 0, 4, 6, 2)},
          {slice_of(kMatrix, 0, 6, 6, 3)}};
}

TEST(SlicedFile, SlicesAlongEitherAxisInThreeFilesGiveTheWholeTensor) {
  for (const auto& writers : {by_rows(), by_columns()}) {
    const TemporaryFolder folder;
    save(folder / "checkpoint.safetensors", writers);
    EXPECT_EQ(folder.files(), 4u);
    const TensorFile loaded = load_tensors(folder / "checkpoint.safetensors");
    EXPECT_EQ(loaded.tensors.size(), 2u);
    EXPECT_TRUE(loaded.tensors.at("w").same_bits(kMatrix));
    EXPECT_TRUE(loaded.tensors.at("step").same_bits(Tensor::scalar<std::int64_t>(7)));
    EXPECT_EQ(loaded.metadata.at("kind"), "test");
  }
}

TEST(SlicedFile, AnySliceIsReadHoweverTheTensorWasSaved) {
  const TemporaryFolder folder;
  save(folder / "rows.safetensors", by_rows());
  save(folder / "columns.safetensors", by_columns());
  save_safetensors(folder / "one.safetensors", {.tensors = {{"w", kMatrix}}, .metadata = {}});
  for (const char* name : {"rows.safetensors", "columns.safetensors", "one.safetensors"}) {
    const TensorReader reader(folder / name);
    EXPECT_EQ(reader.shape("w"), kMatrix.shape());
    EXPECT_EQ(reader.dtype("w"), DType::F32);
    for (const std::int64_t row : {0, 1, 3, 6}) {
      for (const std::int64_t column : {0, 3, 5, 9}) {
        const std::int64_t rows = std::min<std::int64_t>(3, 6 - row);
        const std::int64_t columns = std::min<std::int64_t>(5, 9 - column);
        const Tensor box = reader.read_slice("w", std::vector{row, column}, {rows, columns});
        EXPECT_TRUE(box.same_bits(box_of(kMatrix, row, column, rows, columns)))
            << name << ": " << rows << " x " << columns << " at " << row << ", " << column;
      }
    }
    EXPECT_THROW(reader.read_slice("w", std::vector<std::int64_t>{4, 0}, {3, 9}), UsageError);
    EXPECT_THROW(reader.read_slice("w", std::vector<std::int64_t>{0}, {3, 9}), UsageError);
    EXPECT_THROW(reader.read("other"), UsageError);
  }
}

TEST(SlicedFile, ScalarsAndEmptyTensorsCanBeSlices) {
  const TemporaryFolder folder;
  const std::filesystem::path index = folder / "c.safetensors";
  const std::vector<TensorSlice> slices = {
      {.name = "s", .whole = {}, .begin = {}, .value = Tensor::scalar(2.5f)},
      {.name = "e", .whole = {0, 4}, .begin = {0, 0}, .value = Tensor(DType::I32, {0, 4})}};
  const SliceFile file = write_slices(slice_file(index, 1, 0, 1), slices);
  write_index(index, 1, {}, std::span(&file, 1));
  const TensorFile loaded = load_tensors(index);
  EXPECT_TRUE(loaded.tensors.at("s").same_bits(Tensor::scalar(2.5f)));
  EXPECT_TRUE(loaded.tensors.at("e").same_bits(Tensor(DType::I32, {0, 4})));
}

TEST(SlicedFile, AnotherSaveReplacesTheFirstAndRemovesItsFiles) {
  const TemporaryFolder folder;
  const std::filesystem::path index = folder / "checkpoint.safetensors";
  save(index, by_rows());
  // A save that was killed before it wrote its index: the first one stays, and the next cleans up.
  write_slices(slice_file(index, next_save(index), 0, 3), by_columns()[0]);
  EXPECT_TRUE(load_tensors(index).tensors.at("w").same_bits(kMatrix));
  std::ofstream(folder / "checkpoint.best.safetensors") << "another file";
  save(index, {{slice_of(kMatrix, 0, 0, 6, 9)}});
  EXPECT_TRUE(load_tensors(index).tensors.at("w").same_bits(kMatrix));
  EXPECT_EQ(folder.files(), 3u) << "the index, one file of slices and the other file";
}

TEST(SlicedFile, GapsAndOverlapsAreRefusedAndTheOldIndexStays) {
  const TemporaryFolder folder;
  const std::filesystem::path index = folder / "checkpoint.safetensors";
  save(index, by_rows());
  auto hole = by_rows();
  hole.pop_back();
  EXPECT_NE(message_of<UsageError>([&] { save(index, hole); }).find("36 of 54"), std::string::npos);
  auto overlap = by_rows();
  overlap[1] = {slice_of(kMatrix, 1, 0, 2, 9)};
  EXPECT_NE(message_of<UsageError>([&] { save(index, overlap); }).find("overlap"),
            std::string::npos);
  EXPECT_TRUE(load_tensors(index).tensors.at("w").same_bits(kMatrix));
}

TEST(SlicedFile, ADamagedSliceIsNamedAndOthersAreStillRead) {
  const TemporaryFolder folder;
  const std::filesystem::path index = folder / "checkpoint.safetensors";
  save(index, by_rows());
  const std::filesystem::path second = slice_file(index, 1, 1, 3);
  std::fstream stream(second, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  stream.put('\x55');
  stream.close();
  const std::string message = message_of<DataError>([&] { load_tensors(index); });
  EXPECT_NE(message.find(second.string()), std::string::npos) << message;
  EXPECT_NE(message.find("\"w@2,0\" is damaged"), std::string::npos) << message;
  const TensorReader reader(index);
  const Tensor first = reader.read_slice("w", std::vector<std::int64_t>{0, 0}, {2, 9});
  EXPECT_TRUE(first.same_bits(box_of(kMatrix, 0, 0, 2, 9)));
}

TEST(SlicedFile, AMissingFileAndOneOfAnotherSaveAreDataErrors) {
  const TemporaryFolder folder;
  const std::filesystem::path index = folder / "checkpoint.safetensors";
  save(index, by_rows());
  const std::filesystem::path second = slice_file(index, 1, 1, 3);
  const std::vector<TensorSlice> other = {
      {.name = "w", .whole = {6, 9}, .begin = {2, 0}, .value = Tensor(DType::F32, {2, 9})}};
  write_slices(second, other);
  std::string message = message_of<DataError>([&] { load_tensors(index); });
  EXPECT_NE(message.find("different checkpoints"), std::string::npos) << message;
  std::filesystem::remove(second);
  message = message_of<DataError>([&] { load_tensors(index); });
  EXPECT_NE(message.find(second.string()), std::string::npos) << message;
  EXPECT_NE(message.find("missing"), std::string::npos) << message;
}

TEST(SliceIndex, InvalidIndexesAreDataErrors) {
  const auto with_slices = [](const std::string& shape, const std::string& slices) {
    return R"({"files":["a"],"tensors":{"w":{"dtype":"f32","shape":)" + shape + R"(,"slices":[)" +
           slices + "]}}}";
  };
  const auto slice = [](const std::string& begin, const std::string& shape,
                        const std::string& file = "0") {
    return R"({"file":)" + file + R"(,"name":"w","begin":)" + begin + R"(,"shape":)" + shape +
           R"(,"crc32c":"00000000"})";
  };
  EXPECT_EQ(parse_index(with_slices("[2]", slice("[0]", "[2]")), "index").tensors.size(), 1u);
  const std::string bad[] = {
      "",
      "[]",
      std::string(100000, '['),
      R"({"files":["../a"],"tensors":{}})",
      R"({"files":["a"],"tensors":[]})",
      with_slices("[2]", ""),
      with_slices("[2]", slice("[0]", "[1]")),
      with_slices("[2]", slice("[1]", "[2]")),
      with_slices("[2]", slice("[0]", "[2]", "1")),
      with_slices("[2]", slice("[0]", "[2]", "0.5")),
      with_slices("[2]", slice("[0]", "[2]", "-0.5")),
      with_slices("[2]", slice("[0]", "[2]", "1e300")),
      with_slices("[2]", slice("[0]", "[2]", "-18446744073709551616")),
      with_slices("[2]", slice("[0]", "[2]", "-1")),
      with_slices("[2]", slice("[0]", "[2]", "false")),
      with_slices("[2]", slice("[0,0]", "[2]")),
      with_slices("[2]", slice("[-1]", "[2]")),
      with_slices("[2]", slice("[9223372036854775807]", "[2]")),
      with_slices("[2]", slice("[18446744073709551615]", "[2]")),
      with_slices("[4611686018427387904,8]", slice("[0]", "[2]")),
      with_slices("[2]", slice("[0]", "[1]") + "," + slice("[0]", "[1]")),
  };
  for (const std::string& text : bad) EXPECT_THROW(parse_index(text, "index"), DataError) << text;
}

}  // namespace
}  // namespace lockstep
