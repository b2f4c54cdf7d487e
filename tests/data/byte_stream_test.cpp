#include "lockstep/data/sources/byte_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "data/files.h"
#include "lockstep/data/sources/text.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

using testing::data_error;
using testing::prose;
using testing::write_bytes;
using testing::zipped;

ByteStream stream_of(std::string_view bytes, ByteStreamOptions options = {}) {
  return ByteStream(view_bytes(bytes, "input"), options);
}

// Reads the rest of the stream in chunks of odd sizes, alternating between read and peek.
std::string drain(ByteStream& stream) {
  std::string all;
  std::string piece;
  for (std::size_t size = 1;; size = size * 3 % 70'001 + 1) {
    if (size % 2 == 0) {
      piece.resize(size);
      const std::size_t got = stream.read(piece);
      all.append(piece, 0, got);
      if (got < size) return all;
    } else {
      const std::string_view window = stream.peek(size);
      const std::size_t count = std::min(window.size(), size);
      all += window.substr(0, count);
      stream.consume(count);
      if (count < size) return all;
    }
  }
}

struct Form {
  const char* name;
  std::string bytes;
};

// The same text, plain and compressed in several ways.
std::vector<Form> forms_of(const std::string& text) {
  std::string members;
  for (std::size_t at = 0; at < text.size(); at += 70'000) {
    members += zipped(std::string_view(text).substr(at, 70'000));
  }
  return {{"plain", text},
          {"gzip -1", zipped(text, {.level = 1})},
          {"gzip -6", zipped(text)},
          {"gzip -9", zipped(text, {.level = 9})},
          {"stored", zipped(text, {.level = 0})},
          {"small blocks", zipped(text, {.flush = 777})},
          {"members", members}};
}

TEST(ByteStream, ReadsPlainAndCompressedFilesAlike) {
  const std::string text = prose(900'000);
  const TemporaryFolder folder;
  for (const Form& form : forms_of(text)) {
    write_bytes(folder / "file", form.bytes);
    for (const std::size_t buffer : {4'096u, 262'144u}) {
      ByteStream stream(folder / "file", {.buffer = buffer});
      EXPECT_EQ(stream.compressed(), std::string(form.name) != "plain");
      EXPECT_TRUE(drain(stream) == text) << form.name;
      EXPECT_EQ(stream.tell(), text.size());
      EXPECT_TRUE(stream.at_end());
    }
  }
}

TEST(ByteStream, AnEmptyFileIsEmpty) {
  for (const std::string& bytes : {std::string(), zipped("")}) {
    ByteStream stream = stream_of(bytes);
    EXPECT_TRUE(stream.at_end());
    EXPECT_EQ(stream.skip(5), 0u);
    EXPECT_EQ(stream.line(100), std::nullopt);
  }
}

TEST(ByteStream, ContinuesFromASavedPosition) {
  const std::string text = prose(2'000'000);
  for (const Form& form : forms_of(text)) {
    ByteStream stream = stream_of(form.bytes, {.buffer = 65'536});
    for (std::size_t at = 0; at <= text.size(); at += 83'111) {
      const std::size_t ahead = at - stream.tell();
      EXPECT_EQ(stream.skip(ahead), ahead);
      stream.peek(at % 1000);  // the buffer is not part of the position
      const std::string state = stream.save();
      EXPECT_LT(state.size(), 33'000u) << form.name;
      ByteStream other = stream_of(form.bytes, {.buffer = 8'192});
      other.skip(5);
      other.restore(state);
      EXPECT_EQ(other.tell(), at);
      std::string rest(text.size() - at, '\0');
      EXPECT_EQ(other.read(rest), rest.size());
      EXPECT_TRUE(std::string_view(text).substr(at) == rest) << form.name << " at " << at;
      EXPECT_TRUE(other.at_end());
    }
  }
}

TEST(ByteStream, ARestoredStreamReadsNothingFarBeforeItsPosition) {
  const std::string text = prose(3'000'000);
  const std::string bytes = zipped(text);
  ByteStream stream = stream_of(bytes);
  stream.skip(2'500'000);
  const std::string state = stream.save();
  std::string damaged = bytes;
  std::fill_n(damaged.begin(), damaged.size() / 2, '\xFF');
  ByteStream other = stream_of(damaged, {.compression = Compression::Gzip});
  other.restore(state);
  EXPECT_TRUE(drain(other) == text.substr(2'500'000));
}

TEST(ByteStream, TheChecksumIsVerifiedAfterARestoreToo) {
  std::string bytes = zipped(prose(1'000'000));
  ByteStream stream = stream_of(bytes);
  stream.skip(700'000);
  const std::string state = stream.save();
  bytes[bytes.size() - 7] ^= 1;
  ByteStream other = stream_of(bytes);
  other.restore(state);
  const std::string message = data_error([&] { drain(other); });
  EXPECT_NE(message.find("input: byte "), std::string::npos) << message;
  EXPECT_NE(message.find("the gzip data is damaged: 1000000 bytes with the checksum"),
            std::string::npos)
      << message;
}

TEST(ByteStream, PositionsInOtherFilesAndDamagedOnesChangeNothing) {
  const std::string text = prose(400'000);
  for (const std::string& bytes : {text, zipped(text)}) {
    ByteStream stream = stream_of(bytes);
    stream.skip(123'456);
    const std::string state = stream.save();
    const std::string longer = bytes + bytes;
    ByteStream other = stream_of(longer);
    other.skip(1000);
    EXPECT_NE(data_error([&] { other.restore(state); }).find("must not change"), std::string::npos);
    EXPECT_THROW(stream.restore(state.substr(0, state.size() - 1)), UsageError);
    EXPECT_THROW(stream.restore(state + "x"), UsageError);
    EXPECT_THROW(stream.restore(""), UsageError);
    for (std::size_t word = 2; word < std::min<std::size_t>(state.size() / 8, 6); ++word) {
      std::string damaged = state;
      damaged[8 * word + 7] = '\x7F';
      EXPECT_THROW(stream.restore(damaged), UsageError) << word;
    }
    EXPECT_EQ(stream.tell(), 123'456u);
    EXPECT_TRUE(drain(stream) == text.substr(123'456));
    EXPECT_EQ(other.tell(), 1000u);
    EXPECT_EQ(other.peek(50).substr(0, 50), text.substr(1000, 50));
  }
}

TEST(ByteStream, SeeksInBothDirections) {
  const std::string text = prose(1'500'000);
  for (const Form& form : forms_of(text)) {
    ByteStream stream = stream_of(form.bytes, {.buffer = 16'384});
    for (const std::size_t at : {1'200'000u, 1'199'000u, 3u, 0u, 700'000u, 1'500'000u, 650'000u}) {
      stream.seek(at);
      EXPECT_EQ(stream.tell(), at);
      EXPECT_EQ(stream.peek(300).substr(0, 300), std::string_view(text).substr(at, 300))
          << form.name << " at " << at;
    }
    EXPECT_NE(data_error([&] { stream.seek(1'500'001); }).find("beyond the end"),
              std::string::npos);
  }
}

TEST(ByteStream, FilesThatCannotBeOpenedAreNamed) {
  const TemporaryFolder folder;
  EXPECT_EQ(data_error([&] { ByteStream stream(folder / "none"); }),
            (folder / "none").string() + ": cannot be opened: No such file or directory");
  EXPECT_EQ(data_error([&] { ByteStream stream(folder.path()); }),
            folder.path() + ": is a folder, not a file");
  EXPECT_EQ(data_error([&] { ByteStream stream("/dev/null"); }),
            "/dev/null: is not a regular file");
  write_bytes(folder / "file", "not compressed");
  EXPECT_EQ(data_error([&] {
              ByteStream stream(folder / "file", {.compression = Compression::Gzip});
              stream.at_end();
            }),
            (folder / "file").string() + ": is not a gzip file");
}

TEST(ByteStream, DataBeforeDamageCanBeRead) {
  const std::string text = prose(500'000);
  const std::string bytes = zipped(text);
  const std::string half = bytes.substr(0, bytes.size() / 2);
  ByteStream stream = stream_of(half);
  std::string got;
  const std::string message = data_error([&] {
    for (;;) {
      const std::string_view window = stream.peek(1);
      got += window;
      stream.consume(window.size());
    }
  });
  EXPECT_EQ(message, "input: byte " + std::to_string(half.size()) + ": the gzip data is cut short");
  EXPECT_GT(got.size(), 100'000u);
  EXPECT_TRUE(text.starts_with(got));
  EXPECT_THROW(stream.peek(1), DataError);
}

struct BadFile {
  const char* why;
  std::string bytes;
};

TEST(ByteStream, DamagedGzipIsReportedWithItsByteOffset) {
  const std::string whole = zipped("some text");
  std::string method = whole;
  method[2] = 7;
  std::string flags = whole;
  flags[3] = '\x80';
  std::string checksum = whole;
  checksum[whole.size() - 8] ^= 1;
  std::string length = whole;
  length[whole.size() - 4] ^= 1;
  std::string block = whole;
  block[10] = '\x07';  // an invalid block type
  std::string header_crc = whole;
  header_crc[3] = 2;
  header_crc.insert(10, "ab");
  const BadFile files[] = {
      {"input: byte 5: the gzip data is cut short", whole.substr(0, 5)},
      {"input: byte 0: the gzip data is damaged: method 7", method},
      {"input: byte 0: the gzip data is damaged: method 8, flags 0x80", flags},
      {": the gzip data is damaged: 9 bytes with the checksum", checksum},
      {"but the trailer says 8 (modulo 2^32)", length},
      {"the gzip data is damaged: invalid block type", block},
      {"the header's checksum is", header_crc},
      {": 3 bytes follow the end of the gzip data", whole + "abc"},
      {"cut short", whole.substr(0, whole.size() - 3)},
      {"cut short", whole + "\x1F\x8B\x08"},
  };
  for (const BadFile& file : files) {
    ByteStream stream = stream_of(file.bytes);
    const std::string message = data_error([&] { drain(stream); });
    EXPECT_NE(message.find(file.why), std::string::npos) << file.why << ": " << message;
  }
}

TEST(ByteStream, HeadersWithEveryFieldAreRead) {
  const std::string whole = zipped("some text");
  std::string header = whole.substr(0, 10);
  header[3] = 2 | 4 | 8 | 16;
  header += std::string("\x03\x00", 2) + "abc" + std::string("name\0a comment\0", 15);
  const auto crc =
      ::crc32(0, reinterpret_cast<const Bytef*>(header.data()), static_cast<uInt>(header.size()));
  header += {static_cast<char>(crc & 0xFF), static_cast<char>(crc >> 8 & 0xFF)};
  const std::string bytes = header + whole.substr(10);
  ByteStream stream = stream_of(bytes);
  EXPECT_EQ(drain(stream), "some text");
}

TEST(ByteStream, AnyChangedByteOfGzipIsAnErrorOrHarmless) {
  const std::string text = prose(3000);
  const std::string whole = zipped(text);
  for (std::size_t at = 2; at < whole.size(); ++at) {
    for (const char change : {1, 16, -128}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      ByteStream stream = stream_of(bytes);
      std::string got;
      if (data_error([&] { got = drain(stream); }).empty()) {
        EXPECT_EQ(got, text) << at;
      }
    }
  }
}

TEST(ByteStream, LinesEndWithLineFeeds) {
  const std::string text = "first\r\n\nthird, " + std::string(10'000, 'x') + "\r\rlast";
  for (const std::string& bytes : {text, zipped(text)}) {
    ByteStream stream = stream_of(bytes, {.buffer = 4096});
    EXPECT_EQ(stream.line(20'000), "first");
    EXPECT_EQ(stream.line(20'000), "");
    EXPECT_EQ(stream.tell(), 8u);
    EXPECT_EQ(stream.line(20'000), text.substr(8));
    EXPECT_EQ(stream.line(20'000), std::nullopt);
    stream.seek(8);
    EXPECT_EQ(data_error([&] { stream.line(10'000); }),
              "input: byte 8: a line of more than 10000 bytes");
  }
}

std::vector<std::string> lines_of(LineReader& reader) {
  std::vector<std::string> lines;
  while (const auto line = reader.next()) lines.emplace_back(*line);
  return lines;
}

TEST(LineReader, SkipsAByteOrderMarkAndContinuesFromASavedLine) {
  const std::string text = "\xEF\xBB\xBF" + prose(300'000);
  for (const std::string& bytes : {text, zipped(text)}) {
    LineReader reader(view_bytes(bytes, "lines"), {.buffer = 4096});
    const std::vector<std::string> all = lines_of(reader);
    EXPECT_GT(all.size(), 3000u);
    EXPECT_EQ(all[0], text.substr(3, text.find('\n') - 3));
    EXPECT_EQ(reader.record(), static_cast<std::int64_t>(all.size()));
    LineReader second(view_bytes(bytes, "lines"));
    for (std::size_t at = 0; at < all.size(); at += 397) {
      EXPECT_EQ(second.skip(static_cast<std::int64_t>(at) - second.record()), at == 0 ? 0 : 397);
      LineReader third(view_bytes(bytes, "lines"));
      third.restore(second.save());
      EXPECT_EQ(third.record(), static_cast<std::int64_t>(at));
      EXPECT_EQ(lines_of(third), std::vector<std::string>(all.begin() + at, all.end()));
    }
    EXPECT_LT(second.skip(1'000'000), 397);
  }
}

TEST(LineReader, AnEndlessLineIsAnErrorWithItsNumber) {
  const std::string text = "short\n" + std::string(5000, 'x') + "\nshort\n";
  LineReader reader(view_bytes(text, "lines"), {.longest_line = 100, .buffer = 4096});
  EXPECT_EQ(reader.next(), "short");
  EXPECT_EQ(data_error([&] { reader.next(); }),
            "lines: byte 6: a line of more than 100 bytes (line 2)");
  EXPECT_EQ(reader.next(), std::nullopt);
}

}  // namespace
}  // namespace lockstep
