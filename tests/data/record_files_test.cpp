// TFRecord, text and CSV files as data sets.
#include <gtest/gtest.h>

#include <filesystem>

#include "data/files.h"
#include "data/positions.h"
#include "lockstep/data/records.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::write_bytes;
using testing::zipped;

class RecordFiles : public ::testing::Test {
 protected:
  fs::path file(const std::string& name) const { return folder_ / name; }

  // A file of Examples with an integer "n" that counts up from `first`.
  fs::path examples(const std::string& name, std::int64_t first, std::int64_t count) const {
    std::string bytes;
    for (std::int64_t n = first; n < first + count; ++n) {
      append_tfrecord(bytes, serialize_example({{"n", std::vector<std::int64_t>{n}}}));
    }
    write_bytes(file(name), name.ends_with(".gz") ? zipped(bytes) : bytes);
    return file(name);
  }

  TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

const std::vector<FeatureSpec> kNumber{{.name = "n", .dtype = DType::I64}};

TEST_F(RecordFiles, AreReadOneAfterTheOtherOrInterleaved) {
  const std::vector<fs::path> files{examples("a.tfrecord", 0, 5), examples("b.tfrecord.gz", 5, 7),
                                    examples("c.tfrecord", 12, 0), examples("d.tfrecord", 12, 8)};
  EXPECT_EQ(numbers_of(read_examples(files, kNumber)), count_up(20));
  for (const int threads : {1, 2, AUTOTUNE}) {
    std::vector<std::int64_t> mixed =
        numbers_of(read_examples(files, kNumber, {.cycle = 3, .parallel = threads}));
    EXPECT_EQ(mixed[0], 0);
    EXPECT_EQ(mixed[1], 5);
    std::ranges::sort(mixed);
    EXPECT_EQ(mixed, count_up(20));
  }
  expect_ids_differ(all_of(read_examples(files, kNumber)));
  expect_ids_differ(all_of(read_examples(files, kNumber, {.cycle = 2})));
}

TEST_F(RecordFiles, ContinueFromASavedPosition) {
  const std::vector<fs::path> files{examples("a.tfrecord", 0, 5), examples("b.tfrecord.gz", 5, 7),
                                    examples("d.tfrecord", 12, 8)};
  expect_positions_hold("in order", read_examples(files, kNumber));
  expect_positions_hold("parsed in parallel", read_examples(files, kNumber, {.parallel = 3}));
  expect_positions_hold("in turns", read_examples(files, kNumber, {.cycle = 2, .parallel = 2}));
  expect_positions_hold(
      "shuffled",
      read_examples(files, kNumber).shuffle({.buffer = 6, .seed = 2}).batch(3).prefetch(2));
  write_bytes(file("a.txt"), "one\ntwo\n\nthree");
  expect_positions_hold("lines", read_text_lines({file("a.txt"), file("a.txt")}));
  write_bytes(file("a.csv"), "x,y,n\n1,2,3\n4,5,6\n\"7\",8,9\n");
  expect_positions_hold("csv", read_csv({file("a.csv"), file("a.csv")}));
}

TEST_F(RecordFiles, CsvGivesItsComponents) {
  write_bytes(file("a.csv"), "x,label,text,y\n1,3,cat,2\n4,1,\"a, b\",5\n");
  const Dataset rows = read_csv({file("a.csv")}, {},
                                {.components = {{.columns = {"x", "y"}},
                                                {.columns = {"label"}, .dtype = DType::I32},
                                                {.columns = {"text"}, .dtype = DType::U8}}});
  EXPECT_EQ(rows.element_spec()[0], (ElementSpec{.dtype = DType::F32, .shape = {2}}));
  EXPECT_TRUE(rows.element_spec()[2].varies);
  const std::vector<Element> elements = all_of(rows);
  ASSERT_EQ(elements.size(), 2u);
  EXPECT_EQ(elements[1][0].values<float>()[1], 5);
  EXPECT_EQ(elements[1][1].item(), 1);
  EXPECT_EQ(elements[1][2].bytes(), 4u);
  EXPECT_THROW(rows.batch(2), UsageError);
}

TEST_F(RecordFiles, DamageNamesFileRecordAndStage) {
  const fs::path good = examples("a.tfrecord", 0, 3);
  const fs::path bad = examples("b.tfrecord", 3, 4);
  std::string bytes = testing::read_bytes(bad);
  const std::size_t record = bytes.size() / 4;
  bytes[record + 14] ^= 1;  // in the bytes of record 1
  write_bytes(bad, bytes);
  const fs::path missing = file("missing.tfrecord");

  const std::string text = message_of<DataError>([&] {
    all_of(read_examples({good, bad}, kNumber));
  });
  EXPECT_TRUE(contains(text, "[tfrecord]") && contains(text, "b.tfrecord") &&
              contains(text, "record 1"))
      << text;
  EXPECT_TRUE(contains(message_of<DataError>([&] { all_of(read_tfrecords({missing})); }),
                       "missing.tfrecord"));

  // With OnError::Skip, errors are skipped, counted and listed.
  for (const int cycle : {1, 2}) {
    const auto iterator =
        read_examples({good, missing, bad}, kNumber, {.cycle = cycle, .on_error = OnError::Skip})
            .iterator();
    std::vector<std::int64_t> numbers = numbers_of(rest_of(*iterator));
    std::ranges::sort(numbers);
    EXPECT_EQ(numbers, (std::vector<std::int64_t>{0, 1, 2, 3, 5, 6}));
    const PipelineReport report = iterator->report();
    EXPECT_EQ(report.skipped, 2);
    EXPECT_TRUE(contains(report.text(), "missing.tfrecord") &&
                contains(report.text(), "b.tfrecord"))
        << report.text();
  }

  // Positions count elements that are given, not those that are skipped.
  expect_positions_hold("damaged",
                        read_examples({good, missing, bad}, kNumber, {.on_error = OnError::Skip}));

  const std::string feature = message_of<DataError>(
      [&] { all_of(read_examples({good}, {{.name = "m", .dtype = DType::I64}})); });
  EXPECT_TRUE(contains(feature, "a.tfrecord") && contains(feature, "m")) << feature;

  write_bytes(file("c.csv"), "x,y\n1,2\n3,four\n");
  const std::string cell = message_of<DataError>([&] { all_of(read_csv({file("c.csv")})); });
  EXPECT_TRUE(contains(cell, "[csv]") && contains(cell, "c.csv") && contains(cell, "four")) << cell;

  const std::string short_gzip = zipped(testing::prose(5000));
  write_bytes(file("d.txt.gz"), std::string_view(short_gzip).substr(0, short_gzip.size() / 2));
  EXPECT_TRUE(contains(message_of<DataError>([&] { all_of(read_text_lines({file("d.txt.gz")})); }),
                       "d.txt.gz"));
}

TEST_F(RecordFiles, AFolderWithoutSuchFilesIsAnError) {
  examples("a.tfrecord", 0, 1);
  EXPECT_EQ(files_in(folder_, {".tfrecord", ".tfrecord.gz"}).size(), 1u);
  EXPECT_TRUE(contains(message_of<DataError>([&] { files_in(folder_, {".csv"}); }), ".csv"));
  EXPECT_THROW(files_in(folder_ / "nothing", {".csv"}), DataError);
  EXPECT_THROW(read_tfrecords({}), UsageError);
}

}  // namespace
}  // namespace lockstep
