#include "lockstep/data/sources/csv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "data/files.h"
#include "lockstep/data/sources/csv_value.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

using testing::data_error;
using testing::zipped;

CsvReader reader_of(std::string_view bytes, CsvOptions options = {}) {
  return CsvReader(view_bytes(bytes, "input"), std::move(options));
}

std::string text_of(const Tensor& tensor) {
  const auto bytes = tensor.values<std::uint8_t>();
  return std::string(bytes.begin(), bytes.end());
}

// The text in the first component of each row.
std::vector<std::string> texts(std::string_view bytes, CsvOptions options) {
  CsvReader reader = reader_of(bytes, std::move(options));
  std::vector<std::string> list;
  while (const auto row = reader.next()) list.push_back(text_of((*row)[0]));
  return list;
}

const CsvComponent kTextA{.columns = {"a"}, .dtype = DType::U8};

TEST(Csv, ColumnsBecomeComponentsOfTheirDtypes) {
  const std::string bytes =
      "id,x,label,y,flag,name\r\n"
      "1,0.5,3,-1e3,true,first\r\n"
      "-9223372036854775808, +2 ,-7,.25,0,\"second, \"\"quoted\"\"\nin two lines\"\r\n"
      "\r\n"
      "2,inf,0,1e-50,1,";
  const std::vector<CsvComponent> components{{.columns = {"y", "x"}, .dtype = DType::F32},
                                             {.columns = {"label"}, .dtype = DType::I32},
                                             {.columns = {"id"}, .dtype = DType::I64},
                                             {.columns = {"name"}, .dtype = DType::U8},
                                             {.columns = {"flag"}, .dtype = DType::Bool}};
  for (const std::string& form : {bytes, zipped(bytes), "\xEF\xBB\xBF" + bytes}) {
    CsvReader reader = reader_of(form, {.components = components});
    EXPECT_EQ(reader.names(), (std::vector<std::string>{"id", "x", "label", "y", "flag", "name"}));
    EXPECT_EQ(reader.shape(0), Shape{2});
    EXPECT_EQ(reader.shape(1), Shape{});
    EXPECT_EQ(reader.shape(3), std::nullopt);
    const auto first = reader.next().value();
    EXPECT_TRUE(first[0].same_bits(Tensor::of<float>({-1000, 0.5}, {2})));
    EXPECT_TRUE(first[1].same_bits(Tensor::scalar<std::int32_t>(3)));
    EXPECT_TRUE(first[2].same_bits(Tensor::scalar<std::int64_t>(1)));
    EXPECT_EQ(text_of(first[3]), "first");
    EXPECT_TRUE(first[4].same_bits(Tensor::scalar(true)));
    const auto second = reader.next().value();
    EXPECT_TRUE(second[0].same_bits(Tensor::of<float>({0.25, 2}, {2})));
    EXPECT_EQ(second[2].values<std::int64_t>()[0], std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(text_of(second[3]), "second, \"quoted\"\nin two lines");
    const auto third = reader.next().value();
    EXPECT_TRUE(
        third[0].same_bits(Tensor::of<float>({0, std::numeric_limits<float>::infinity()}, {2})));
    EXPECT_EQ(text_of(third[3]), "");
    EXPECT_FALSE(reader.next().has_value());
    EXPECT_EQ(reader.record(), 3);
  }
}

TEST(Csv, OneComponentMayTakeAllRemainingColumns) {
  CsvReader all = reader_of("a,b,c\n1,2,3\n");
  EXPECT_TRUE(all.next().value()[0].same_bits(Tensor::of<float>({1, 2, 3}, {3})));
  CsvReader rest =
      reader_of("a,b,c\n1,2,3\n",
                {.components = {{.columns = {"b"}, .dtype = DType::I32}, {.dtype = DType::F64}}});
  const auto row = rest.next().value();
  EXPECT_TRUE(row[0].same_bits(Tensor::scalar<std::int32_t>(2)));
  EXPECT_TRUE(row[1].same_bits(Tensor::of<double>({1, 3}, {2})));
}

TEST(Csv, ColumnsWithoutAHeaderAreNumberedOrNamedByTheUser) {
  CsvReader numbered = reader_of(
      "5;6\n7;8\n", {.components = {{.columns = {"1"}}}, .header = false, .delimiter = ';'});
  EXPECT_EQ(numbered.next().value()[0].item(), 6);
  EXPECT_EQ(numbered.next().value()[0].item(), 8);
  CsvReader named = reader_of("5\t6\n", {.components = {{.columns = {"x"}}},
                                         .header = false,
                                         .names = {"x", "y"},
                                         .delimiter = '\t'});
  EXPECT_EQ(named.next().value()[0].item(), 5);
  CsvReader renamed =
      reader_of("a,a\n5,6\n", {.components = {{.columns = {"y"}}}, .names = {"x", "y"}});
  EXPECT_EQ(renamed.next().value()[0].item(), 6);
  CsvReader empty = reader_of("", {.header = false, .names = {"x", "y"}});
  EXPECT_FALSE(empty.next().has_value());
}

TEST(Csv, QuotesFollowTheRfc) {
  const CsvOptions options{.components = {kTextA}};
  EXPECT_EQ(texts("a\n\"\"\n\"x\"\n\"\"\"\"\n\"a\"\"b\"\n", options),
            (std::vector<std::string>{"", "x", "\"", "a\"b"}));
  EXPECT_EQ(texts("\"a\",b\n\"1\n2\",\"3\r\n4\"\n5,6\n", options),
            (std::vector<std::string>{"1\n2", "5"}));
  EXPECT_EQ(texts("a,b\nx,\"last\"", options), (std::vector<std::string>{"x"}));
  EXPECT_EQ(texts("a,b\nsay \"x\",1\n", {.components = {kTextA}, .quotes = false}),
            (std::vector<std::string>{"say \"x\""}));
  CsvReader numbers = reader_of("a,b\n\"1.5\",\" 2 \"\n");
  EXPECT_TRUE(numbers.next().value()[0].same_bits(Tensor::of<float>({1.5, 2}, {2})));
}

TEST(Csv, MissingFieldsTakeTheirDefault) {
  const CsvOptions options{.components = {{.columns = {"a"}, .missing = "-1"},
                                          {.columns = {"b"}, .dtype = DType::U8, .missing = "?"},
                                          {.columns = {"c"}, .dtype = DType::U8}}};
  CsvReader reader = reader_of("a,b,c\n,,\nNA,NA,NA\n2,\"\",\"NA\"\n", options);
  auto row = reader.next().value();
  EXPECT_EQ(row[0].item(), -1);
  EXPECT_EQ(text_of(row[1]), "?");
  EXPECT_EQ(text_of(row[2]), "");
  row = reader.next().value();
  EXPECT_EQ(row[0].item(), -1);
  EXPECT_EQ(text_of(row[1]), "?");
  EXPECT_EQ(text_of(row[2]), "NA");
  row = reader.next().value();
  EXPECT_EQ(row[0].item(), 2);
  EXPECT_EQ(text_of(row[1]), "");
}

TEST(Csv, ABadRowIsNamedAndTheNextOneIsRead) {
  struct Bad {
    const char* row;
    const char* why;
  };
  const Bad rows[] = {
      {"1,x,3", "input: line 3, column 2 ('b'): 'x' is not a valid f32"},
      {"1,,3",
       "input: line 3, column 2 ('b'): the field is missing (''); set .missing to the value to "
       "use instead"},
      {"1,2.5,3x", "input: line 3, column 3 ('c'): '3x' is not a valid i32"},
      {"1,2.5,3.0", "input: line 3, column 3 ('c'): '3.0' is not a valid i32"},
      {"1,2.5,4294967296",
       "input: line 3, column 3 ('c'): '4294967296' is out of the range of i32"},
      {"1,1e39,3", "input: line 3, column 2 ('b'): '1e39' is out of the range of f32"},
      {"1,1e9999,3", "input: line 3, column 2 ('b'): '1e9999' is out of the range of f32"},
      {"1,+-2,3", "input: line 3, column 2 ('b'): '+-2' is not a valid f32"},
      {"1,2", "input: line 3: 2 fields, but 3 were expected"},
      {"1,2,3,4", "input: line 3: 4 fields, but 3 were expected"},
      {"1,2,3,", "input: line 3: 4 fields, but 3 were expected"},
      {"1 \"x\",2,3",
       "input: line 3, column 1 ('a'): '1 \"x\"' contains a quote but is not quoted"},
      {"\"1\"x,2,3",
       "input: line 3, column 1 ('a'): 'x' follows the closing quote; a delimiter was "
       "expected"},
  };
  const std::vector<CsvComponent> components{{.columns = {"b"}},
                                             {.columns = {"c"}, .dtype = DType::I32}};
  for (const Bad& bad : rows) {
    const std::string bytes = "a,b,c\n1,2,3\n" + std::string(bad.row) + "\n4,5,6\n";
    CsvReader reader = reader_of(bytes, {.components = components});
    EXPECT_TRUE(reader.next().has_value());
    EXPECT_EQ(data_error([&] { reader.next(); }), bad.why);
    EXPECT_EQ(reader.record(), 2);
    EXPECT_EQ(reader.next().value()[0].item(), 5) << bad.row;
    EXPECT_FALSE(reader.next().has_value());
    CsvReader skipping = reader_of(bytes, {.components = components});
    EXPECT_EQ(skipping.skip(10), 3);
  }
}

TEST(Csv, AnUnclosedQuoteEndsTheFile) {
  CsvReader reader = reader_of("a\nx\n\"y\nz\n", {.components = {kTextA}});
  reader.next();
  EXPECT_EQ(data_error([&] { reader.next(); }),
            "input: line 3: a quote in this row is never closed");
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_EQ(data_error([] {
              texts("a\n" + std::string(10'000, 'x') + "\n",
                    {.components = {kTextA}, .longest_row = 5000, .buffer = 4096});
            }),
            "input: line 2: a row of more than 5000 bytes");
  const std::string cut = zipped("a\n" + testing::prose(100'000)).substr(0, 1000);
  const std::string message = data_error([&] { texts(cut, {.components = {kTextA}}); });
  EXPECT_TRUE(message.starts_with("input: byte 1000: the gzip data is cut short (in the row at"))
      << message;
}

TEST(Csv, InvalidFilesAreNamed) {
  EXPECT_EQ(data_error([] { reader_of(""); }), "input: is empty and has no header");
  EXPECT_EQ(data_error([] { reader_of("", {.header = false}); }),
            "input: is empty, so its columns are unknown; set .names");
  EXPECT_EQ(data_error([] { reader_of("a,b\n", {.components = {{.columns = {"c"}}}}); }),
            "input: there is no column 'c'; the columns are 'a', 'b'");
  EXPECT_EQ(data_error([] { reader_of("a,a\n", {.components = {{.columns = {"a"}}}}); }),
            "input: there are two columns 'a'; set .names");
  EXPECT_EQ(data_error([] { reader_of("a,b\n", {.names = {"x"}}); }),
            "input: line 1: 2 fields, but .names lists 1");
  EXPECT_EQ(data_error([] {
              reader_of("a\n", {.components = {{.columns = {"a"}}, {.dtype = DType::F32}}});
            }),
            "input: no column is left for component 1");
}

TEST(Csv, InvalidOptionsAreRefused) {
  const auto refused = [](CsvOptions options) {
    EXPECT_THROW(reader_of("a,b\n", std::move(options)), UsageError);
  };
  refused({.components = {}});
  refused({.components = {{}, {}}});
  refused({.components = {{.columns = {"a"}}, {.columns = {"a"}}}});
  refused({.components = {{.columns = {"a", "b"}, .dtype = DType::U8}}});
  refused({.components = {{.dtype = DType::U8}}});
  refused({.components = {{.columns = {"a"}, .dtype = DType::F16}}});
  refused({.components = {{.columns = {"a"}, .dtype = DType::I32, .missing = "x"}}});
  refused({.delimiter = '"'});
  refused({.delimiter = '.'});
  refused({.delimiter = 'e'});
}

// Rows of a number and a text of varying length, some quoted, so that many cross a small buffer.
std::string long_table() {
  std::string bytes = "n,text\n";
  for (int i = 0; i < 3000; ++i) {
    bytes += std::to_string(i) + ",";
    const std::string text(static_cast<std::size_t>(i * 7 % 90), 'x');
    bytes += i % 3 == 0 ? "\"" + text + "\"\"\n,\"" : text;
    bytes += i % 5 == 0 ? "\r\n" : "\n";
    if (i % 11 == 0) bytes += "\n";
  }
  return bytes;
}

TEST(Csv, ContinuesFromASavedRow) {
  const std::string bytes = long_table();
  const CsvOptions options{.components = {{.columns = {"n"}, .dtype = DType::I32},
                                          {.columns = {"text"}, .dtype = DType::U8}},
                           .buffer = 4096};
  for (const std::string& form : {bytes, zipped(bytes)}) {
    CsvReader reader = reader_of(form, options);
    for (int i = 0; i < 3000; ++i) {
      if (i % 97 == 0) {
        CsvReader other = reader_of(form, options);
        other.skip(3);
        other.restore(reader.save());
        EXPECT_EQ(other.record(), i);
        for (int j = i; j < std::min(i + 50, 3000); ++j) {
          EXPECT_EQ(other.next().value()[0].item(), j);
        }
        EXPECT_EQ(other.skip(10'000), std::max(2950 - i, 0));
      }
      const auto row = reader.next().value();
      EXPECT_EQ(row[0].item(), i);
      EXPECT_EQ(row[1].elements(), i * 7 % 90 + (i % 3 == 0 ? 3 : 0));
    }
    CsvReader other = reader_of(form, options);
    other.restore(reader.save());
    EXPECT_FALSE(other.next().has_value());
    EXPECT_THROW(other.restore("nonsense"), UsageError);
  }
}

TEST(Csv, RowsAreWrittenToGivenAddresses) {
  CsvReader reader =
      reader_of("a,b,c\n1,2,3\n4,5,6\n",
                {.components = {{.columns = {"c", "a"}}, {.columns = {"b"}, .dtype = DType::I32}}});
  Tensor pairs(DType::F32, {2, 2});
  Tensor numbers(DType::I32, {2});
  for (std::size_t row = 0; row < 2; ++row) {
    std::byte* const places[] = {pairs.raw() + 8 * row, numbers.raw() + 4 * row};
    EXPECT_TRUE(reader.next_into(places));
  }
  EXPECT_TRUE(pairs.same_bits(Tensor::of<float>({3, 1, 6, 4}, {2, 2})));
  EXPECT_TRUE(numbers.same_bits(Tensor::of<std::int32_t>({2, 5}, {2})));
  std::byte* const places[] = {pairs.raw(), numbers.raw()};
  EXPECT_FALSE(reader.next_into(places));
  CsvReader text = reader_of("a\nx\n", {.components = {kTextA}});
  EXPECT_THROW(text.next_into({places, 1}), UsageError);
}

TEST(Csv, NumbersAreReadExactly) {
  const auto read = [](const char* text) {
    double value = 0;
    EXPECT_EQ(parse_value(text, DType::F64, reinterpret_cast<std::byte*>(&value)), CsvParsed::Good)
        << text;
    return value;
  };
  EXPECT_EQ(read("0.1"), 0.1);
  EXPECT_EQ(read(" 1.7976931348623157e308\t"), 1.7976931348623157e308);
  EXPECT_EQ(read("5e-324"), 5e-324);
  EXPECT_EQ(read("1e-400"), 0.0);
  EXPECT_TRUE(std::signbit(read("-0")));
  EXPECT_TRUE(std::isnan(read("nan")));
  float value = 0;
  auto* const to = reinterpret_cast<std::byte*>(&value);
  EXPECT_EQ(parse_value("0.1", DType::F32, to), CsvParsed::Good);
  EXPECT_EQ(value, 0.1f);
  EXPECT_EQ(parse_value("1.0000000596046448", DType::F32, to), CsvParsed::Good);  // rounded once
  EXPECT_EQ(value, 1.0000001f);
  EXPECT_EQ(parse_value("1 2", DType::F32, to), CsvParsed::NotANumber);
  EXPECT_EQ(parse_value("", DType::F32, to), CsvParsed::NotANumber);
}

TEST(Csv, ChangedBytesAreAnErrorOrARow) {
  const std::string whole = "a,b,c\n1,\"2\",3\n\"4\",5,\"x\"\"y\n\"\n";
  const CsvOptions options{.components = {{.columns = {"a", "b"}, .missing = "0"},
                                          {.columns = {"c"}, .dtype = DType::U8}}};
  for (std::size_t at = 6; at < whole.size(); ++at) {
    for (const char c : {'"', ',', '\n', '\r', '\0', '9', '-', '\xFF'}) {
      std::string bytes = whole;
      bytes[at] = c;
      CsvReader reader = reader_of(bytes, options);
      for (int rows = 0; rows < 10; ++rows) {
        bool more = true;
        data_error([&] { more = reader.next().has_value(); });
        if (!more) break;
        EXPECT_LT(rows, 9);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
