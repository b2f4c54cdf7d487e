#include "lockstep/data/sources/tfrecord.h"

#include <gtest/gtest.h>

#include <array>

#include "data/files.h"
#include "data/records.h"
#include "lockstep/base/crc32c.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

using testing::data_error;
using testing::prose;
using testing::read_bytes;
using testing::write_bytes;
using testing::zipped;

TFRecordReader reader_of(std::string_view bytes, TFRecordOptions options = {}) {
  return TFRecordReader(view_bytes(bytes, "input"), options);
}

std::vector<std::string> drain(TFRecordReader& reader) {
  std::vector<std::string> records;
  while (const auto record = reader.next()) records.emplace_back(*record);
  return records;
}

std::string framed(const std::vector<std::string>& records) {
  std::string bytes;
  for (const std::string& record : records) append_tfrecord(bytes, record);
  return bytes;
}

const std::vector<std::string>& some_records() {
  static const std::vector<std::string> records{
      "first", "", std::string(1, '\0'), prose(300'000, 2), prose(70'000, 3), "last"};
  return records;
}

TEST(TFRecord, ReadsAndWritesTheSameBytesAsTensorFlow) {
  const std::string bytes = testing::tensorflow_file();
  TFRecordReader reader = reader_of(bytes);
  const std::vector<std::string> records = drain(reader);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].size(), 69u);
  EXPECT_EQ(records[1].size(), 63u);
  EXPECT_EQ(framed(records), bytes);
}

TEST(TFRecord, WrittenRecordsAreReadBack) {
  const TemporaryFolder folder;
  for (const char* name : {"plain.tfrecord", "packed.tfrecord.gz"}) {
    TFRecordWriter writer(folder / name);
    for (const std::string& record : some_records()) writer.write(record);
    EXPECT_EQ(writer.records(), 6);
    EXPECT_FALSE(std::filesystem::exists(folder / name));
    writer.close();
    TFRecordReader reader(folder / name, {.buffer = 4096});
    EXPECT_EQ(reader.name(), (folder / name).string());
    EXPECT_TRUE(drain(reader) == some_records());
    EXPECT_EQ(reader.record(), 6);
    EXPECT_EQ(reader.next(), std::nullopt);
  }
  EXPECT_EQ(read_bytes(folder / "plain.tfrecord"), framed(some_records()));
  EXPECT_LT(read_bytes(folder / "packed.tfrecord.gz").size(), 250'000u);
}

TEST(TFRecord, AnUnclosedFileLeavesNothing) {
  const TemporaryFolder folder;
  {
    TFRecordWriter writer(folder / "file", {.compression = Compression::Gzip});
    writer.write(prose(1'000'000));
  }
  EXPECT_EQ(folder.files(), 0u);
  EXPECT_NE(data_error([&] { TFRecordWriter(folder / "none/file"); }).find("cannot be written"),
            std::string::npos);
  EXPECT_THROW(TFRecordWriter(folder / "file.gz", {.level = 10}), UsageError);
}

TEST(TFRecord, EmptyFilesHaveNoRecords) {
  for (const std::string& bytes : {std::string(), zipped("")}) {
    TFRecordReader reader = reader_of(bytes);
    EXPECT_EQ(reader.next(), std::nullopt);
    EXPECT_EQ(reader.skip(3), 0);
  }
}

TEST(TFRecord, SkippingAdvancesLikeReading) {
  const std::string bytes = framed(some_records());
  for (const std::string& form : {bytes, zipped(bytes)}) {
    for (std::int64_t count = 0; count < 8; ++count) {
      TFRecordReader reader = reader_of(form, {.buffer = 4096});
      EXPECT_EQ(reader.skip(count), std::min<std::int64_t>(count, 6));
      EXPECT_EQ(reader.record(), std::min<std::int64_t>(count, 6));
      EXPECT_EQ(reader.next(), count < 6 ? std::optional<std::string_view>(
                                               some_records()[static_cast<std::size_t>(count)])
                                         : std::nullopt);
    }
  }
}

TEST(TFRecord, ContinuesFromASavedRecord) {
  std::vector<std::string> records;
  for (unsigned i = 0; i < 300; ++i) records.push_back(prose(i * 37 % 9001, i));
  const std::string bytes = framed(records);
  for (const std::string& form : {bytes, zipped(bytes)}) {
    TFRecordReader reader = reader_of(form);
    for (std::size_t at = 0; at < records.size(); ++at) {
      if (at % 7 == 0) {
        TFRecordReader other = reader_of(form, {.buffer = 8192});
        other.skip(2);
        other.restore(reader.save());
        EXPECT_EQ(other.record(), static_cast<std::int64_t>(at));
        EXPECT_TRUE(drain(other) ==
                    std::vector<std::string>(records.begin() + static_cast<std::ptrdiff_t>(at),
                                             records.end()));
      }
      EXPECT_EQ(reader.next(), records[at]);
    }
    TFRecordReader other = reader_of(form);
    other.restore(reader.save());
    EXPECT_EQ(other.next(), std::nullopt);
    EXPECT_THROW(other.restore("nonsense"), UsageError);
  }
}

TEST(TFRecord, TheRecordAfterDamagedDataIsRead) {
  std::string bytes = framed({"one", "two", "three"});
  bytes[16 + 3 + 12] = 'T';
  TFRecordReader reader = reader_of(bytes);
  EXPECT_EQ(reader.next(), "one");
  const std::string message = data_error([&] { reader.next(); });
  EXPECT_EQ(message,
            fmt::format("input: record 1 at byte 19: the checksum of its 3 bytes is {:#010x}, but "
                        "the file has {:#010x}",
                        masked_crc32c("Two"), masked_crc32c("two")));
  EXPECT_EQ(reader.record(), 2);
  EXPECT_EQ(reader.next(), "three");
  EXPECT_EQ(reader.next(), std::nullopt);

  TFRecordReader trusting = reader_of(bytes, {.check_data = false});
  EXPECT_EQ(drain(trusting), (std::vector<std::string>{"one", "Two", "three"}));
  TFRecordReader skipping = reader_of(bytes);
  EXPECT_EQ(skipping.skip(3), 3);
}

TEST(TFRecord, ADamagedLengthEndsTheFile) {
  std::string bytes = framed({"one", "two", "three"});
  bytes[19] = 4;
  TFRecordReader reader = reader_of(bytes);
  EXPECT_EQ(reader.next(), "one");
  const std::string before = reader.save();
  const std::string message = data_error([&] { reader.next(); });
  EXPECT_TRUE(message.starts_with("input: record 1 at byte 19: the checksum of its length 4 is 0x"))
      << message;
  EXPECT_NE(message.find("not a TFRecord file"), std::string::npos);
  EXPECT_EQ(reader.next(), std::nullopt);
  EXPECT_EQ(reader.skip(1), 0);
  TFRecordReader other = reader_of(bytes);
  other.restore(reader.save());
  EXPECT_EQ(other.next(), std::nullopt);
  other.restore(before);
  EXPECT_THROW(other.skip(1), DataError);
}

TEST(TFRecord, TruncationIsNamed) {
  const std::string bytes = framed({"one", "two"});
  struct Cut {
    std::size_t size;
    const char* why;
  };
  for (const Cut& cut :
       {Cut{20, "input: record 1 at byte 19: cut short: 1 bytes are left, but its header has 12"},
        Cut{30, "record 1 at byte 19: cut short: 11 bytes are left"},
        Cut{31, "its 3 bytes and their checksum do not fit in the 0 left"},
        Cut{37, "its 3 bytes and their checksum do not fit in the 6 left"}}) {
    for (const bool skip : {false, true}) {
      TFRecordReader reader = reader_of(std::string_view(bytes).substr(0, cut.size));
      EXPECT_EQ(reader.next(), "one");
      const std::string message =
          data_error([&] { skip ? (void)reader.skip(1) : (void)reader.next(); });
      EXPECT_NE(message.find(cut.why), std::string::npos) << cut.size << ": " << message;
      EXPECT_EQ(reader.next(), std::nullopt);
    }
  }
  const std::string packed = zipped(bytes.substr(0, 37));
  TFRecordReader reader = reader_of(packed);
  EXPECT_EQ(reader.next(), "one");
  EXPECT_EQ(data_error([&] { reader.next(); }),
            "input: record 1 at uncompressed byte 19: cut short: its 3 bytes and their checksum do "
            "not fit in the 6 left");
  const std::string broken = zipped(bytes).substr(0, 30);
  TFRecordReader short_gzip = reader_of(broken);
  EXPECT_EQ(short_gzip.next(), "one");
  EXPECT_EQ(data_error([&] { short_gzip.next(); }),
            "input: byte 30: the gzip data is cut short (in record 1)");
  EXPECT_EQ(short_gzip.next(), std::nullopt);
}

TEST(TFRecord, AnAbsurdLengthAllocatesNothing) {
  std::string bytes("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 8);
  const std::uint32_t crc = masked_crc32c(bytes);
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(crc >> shift & 0xFF);
  bytes += "data";
  for (const std::string& form : {bytes, zipped(bytes)}) {
    TFRecordReader reader = reader_of(form);
    EXPECT_NE(data_error([&] { reader.next(); }).find("cut short: its 9223372036854775807 bytes"),
              std::string::npos);
  }
}

TEST(TFRecord, ALengthThatLooksLikeGzipIsNotTakenForIt) {
  const std::string bytes = framed({std::string(0x88B1F, 'x'), "second"});
  ASSERT_TRUE(is_gzip(bytes));
  TFRecordReader reader = reader_of(bytes);
  EXPECT_EQ(reader.next()->size(), 0x88B1Fu);
  EXPECT_EQ(reader.next(), "second");
}

TEST(TFRecord, EveryChangedByteIsAnError) {
  const std::string whole = framed({"one", "", "three"});
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char change : {1, 4, 64, -128}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      TFRecordReader reader = reader_of(bytes);
      EXPECT_NE(data_error([&] { drain(reader); }), "") << at;
    }
  }
  for (std::size_t size = 1; size < whole.size(); ++size) {
    if (size == 19 || size == 35) continue;  // between records
    TFRecordReader reader = reader_of(std::string_view(whole).substr(0, size));
    EXPECT_NE(data_error([&] { drain(reader); }), "") << size;
  }
}

}  // namespace
}  // namespace lockstep
