#include "lockstep/data/sources/example.h"

#include <gtest/gtest.h>

#include "data/files.h"
#include "data/records.h"
#include "lockstep/data/sources/example.pb.h"
#include "lockstep/data/sources/tfrecord.h"

namespace lockstep {
namespace {

using testing::data_error;
using Integers = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Strings = std::vector<std::string>;

constexpr FeatureLength kVariable = FeatureLength::Variable;
constexpr FeatureLength kPadded = FeatureLength::Padded;

Tensor parse(const FeatureSpec& spec, std::string_view bytes) {
  return ExampleParser({spec}).parse(bytes, "file", 7)[0];
}

std::string rejection(const FeatureSpec& spec, std::string_view bytes) {
  return data_error([&] { parse(spec, bytes); });
}

Tensor bytes_of(const std::string& text) {
  return Tensor::of<std::uint8_t>(std::vector<std::uint8_t>(text.begin(), text.end()),
                                  {static_cast<std::int64_t>(text.size())});
}

TEST(Example, FilesWrittenByTensorFlowAreRead) {
  const std::string bytes = testing::tensorflow_file();
  TFRecordReader reader(view_bytes(bytes, "file"));
  const ExampleParser parser({{.name = "image", .dtype = DType::U8, .length = kVariable},
                              {.name = "label", .dtype = DType::I64, .length = kVariable},
                              {.name = "weights", .shape = {4}, .length = kPadded, .pad = -1}});
  const std::vector<Tensor> first = parser.parse(*reader.next(), "file", 0);
  EXPECT_TRUE(first[0].same_bits(bytes_of(std::string("\xFF\xD8\0jpeg", 7))));
  EXPECT_TRUE(first[1].same_bits(Tensor::of<std::int64_t>({3}, {1})));
  EXPECT_TRUE(first[2].same_bits(Tensor::of<float>({0.5f, -1.25f, 3e38f, -1}, {4})));
  const std::vector<Tensor> second = parser.parse(*reader.next(), "file", 1);
  EXPECT_TRUE(second[0].same_bits(bytes_of("")));
  EXPECT_TRUE(second[1].same_bits(Tensor::of<std::int64_t>({-1, std::int64_t{1} << 40}, {2})));
  EXPECT_TRUE(second[2].same_bits(Tensor::of<float>({-1, -1, -1, -1}, {4})));
}

TEST(Example, SerialisedExamplesAreParsed) {
  const std::string bytes = serialize_example({{"image", std::string("abc\0d", 5)},
                                               {"label", Integers{-5}},
                                               {"boxes", Floats{1, 2, 3, 4, 5, 6, 7, 8}},
                                               {"flags", Integers{1, 0, 1}},
                                               {"unread", Strings{"a", "b"}}});
  const ExampleParser parser({
      {.name = "label", .dtype = DType::I32},
      {.name = "boxes", .shape = {4}, .length = kVariable},
      {.name = "image", .dtype = DType::U8, .length = kVariable},
      {.name = "flags", .dtype = DType::Bool, .shape = {3}},
      {.name = "absent", .dtype = DType::F64, .shape = {2}, .missing = Tensor::scalar(0.5)},
      {.name = "none", .dtype = DType::I64, .shape = {2}, .length = kVariable},
  });
  const std::vector<Tensor> tensors = parser.parse(bytes, "file", 0);
  EXPECT_TRUE(tensors[0].same_bits(Tensor::scalar<std::int32_t>(-5)));
  EXPECT_TRUE(tensors[1].same_bits(Tensor::of<float>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4})));
  EXPECT_TRUE(tensors[2].same_bits(bytes_of(std::string("abc\0d", 5))));
  EXPECT_TRUE(tensors[3].values<bool>()[0] && !tensors[3].values<bool>()[1]);
  EXPECT_TRUE(tensors[4].same_bits(Tensor::of<double>({0.5, 0.5}, {2})));
  EXPECT_EQ(tensors[5].shape(), (Shape{0, 2}));
}

TEST(Example, TheSameFeaturesGiveTheSameBytes) {
  std::map<std::string, FeatureValue> features;
  for (int i = 0; i < 100; ++i) features[std::to_string(i * 7919)] = Integers{i};
  const std::string bytes = serialize_example(features);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(serialize_example(features), bytes);
}

TEST(Example, ValuesAreReadAsEveryDtypeThatCanHoldThem) {
  const std::string bytes = serialize_example({{"f", Floats{1.5f, -0.0f}},
                                               {"i", Integers{2147483647, -2147483648}},
                                               {"b", std::string("\x01\x02\xFF\x00", 4)}});
  EXPECT_TRUE(parse({.name = "f", .dtype = DType::F64, .shape = {2}}, bytes)
                  .same_bits(Tensor::of<double>({1.5, -0.0}, {2})));
  EXPECT_TRUE(parse({.name = "i", .dtype = DType::I32, .shape = {2, 1}}, bytes)
                  .same_bits(Tensor::of<std::int32_t>({2147483647, -2147483647 - 1}, {2, 1})));
  EXPECT_TRUE(parse({.name = "b", .dtype = DType::U8, .shape = {2, 2}}, bytes)
                  .same_bits(Tensor::of<std::uint8_t>({1, 2, 255, 0}, {2, 2})));
  EXPECT_TRUE(
      parse({.name = "i", .dtype = DType::I64, .shape = {4}, .length = kPadded, .pad = 9}, bytes)
          .same_bits(Tensor::of<std::int64_t>({2147483647, -2147483648, 9, 9}, {4})));
}

TEST(Example, MismatchesNameTheFeatureAndTheRecord) {
  const std::string bytes = serialize_example({{"label", Integers{1, 0, std::int64_t{1} << 33}},
                                               {"weights", Floats{1, 2, 3}},
                                               {"names", Strings{"a", "b"}}});
  EXPECT_EQ(rejection({.name = "lable"}, bytes),
            "file: record 7: feature 'lable' is missing; the record has 'label', 'names', "
            "'weights'");
  EXPECT_EQ(
      rejection({.name = "label"}, bytes),
      "file: record 7: feature 'label': it contains integers (int64_list), but f32 is read from "
      "floats (float_list)");
  EXPECT_EQ(
      rejection({.name = "weights", .dtype = DType::U8}, bytes),
      "file: record 7: feature 'weights': it contains floats (float_list), but u8 is read from "
      "bytes (bytes_list)");
  EXPECT_EQ(rejection({.name = "weights", .shape = {2, 2}}, bytes),
            "file: record 7: feature 'weights': 3 values, but the shape (2, 2) needs 4");
  EXPECT_NE(rejection({.name = "weights"}, bytes).find("Variable reads any number"),
            std::string::npos);
  EXPECT_EQ(rejection({.name = "weights", .shape = {2}, .length = kVariable}, bytes),
            "file: record 7: feature 'weights': 3 values do not fill whole rows of 2");
  EXPECT_EQ(rejection({.name = "weights", .shape = {2}, .length = kPadded}, bytes),
            "file: record 7: feature 'weights': 3 rows, but the padded shape (2,) has room for 2");
  EXPECT_EQ(rejection({.name = "label", .dtype = DType::I32, .shape = {3}}, bytes),
            "file: record 7: feature 'label': value 2 is 8589934592, which i32 cannot hold");
  EXPECT_EQ(rejection({.name = "names", .dtype = DType::U8, .length = kVariable}, bytes),
            "file: record 7: feature 'names': 2 byte strings, but one was expected");
  EXPECT_EQ(rejection({.name = "label"}, "no protobuf"),
            "file: record 7: its 11 bytes are not a tf.train.Example");
  EXPECT_EQ(rejection({.name = "label"}, ""),
            "file: record 7: feature 'label' is missing; the record has none");
}

TEST(Example, InvalidSpecsAreRefused) {
  EXPECT_THROW(ExampleParser({}), UsageError);
  EXPECT_THROW(ExampleParser({{.name = "a"}, {.name = "a"}}), UsageError);
  EXPECT_THROW(ExampleParser({{.name = "a", .dtype = DType::BF16}}), UsageError);
  EXPECT_THROW(ExampleParser({{.name = "a", .length = kPadded}}), UsageError);
  EXPECT_THROW(ExampleParser({{.name = "a", .missing = Tensor::scalar<std::int32_t>(1)}}),
               UsageError);
  EXPECT_THROW(ExampleParser({{.name = "a", .shape = {2}, .missing = Tensor(DType::F32, {3})}}),
               UsageError);
}

// A length-delimited field: its tag, its length and its contents.
std::string field(int number, const std::string& body) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(body.size())} + body;
}

TEST(Example, EveryEncodingOfTheSameValuesIsRead) {
  const FeatureSpec floats{.name = "x", .shape = {3}};
  const FeatureSpec integers{.name = "x", .dtype = DType::I64, .shape = {3}};
  const auto example = [](const std::string& feature) {
    return field(1, field(1, field(1, "x") + field(2, feature)));
  };
  const std::string packed_floats("\x00\x00\x80\x3F\x00\x00\x00\x40", 8);
  const std::string unpacked_float("\x0D\x00\x00\x40\x40", 5);
  const Tensor expected = Tensor::of<float>({1, 2, 3}, {3});
  EXPECT_TRUE(parse(floats, example(field(2, field(1, packed_floats) + unpacked_float)))
                  .same_bits(expected));
  // A list and a feature that are each split in two.
  EXPECT_TRUE(parse(floats, example(field(2, field(1, packed_floats)) + field(2, unpacked_float)))
                  .same_bits(expected));
  EXPECT_TRUE(
      parse(floats, field(1, field(1, field(1, "x") + field(2, field(2, field(1, packed_floats))) +
                                          field(2, field(2, unpacked_float)))))
          .same_bits(expected));
  const Tensor numbers = Tensor::of<std::int64_t>({1, 2, 300}, {3});
  EXPECT_TRUE(
      parse(integers, example(field(3, std::string("\x08\x01", 2) + field(1, "\x02\xAC\x02"))))
          .same_bits(numbers));
  // Unknown fields are skipped; if two features have the same name, the last one counts.
  EXPECT_TRUE(
      parse(integers,
            field(9, "unknown") +
                field(1, field(1, field(1, "x") + field(2, field(2, ""))) +
                             field(1, field(1, "x") +
                                          field(2, field(3, field(1, "\x01\x02\xAC\x02")))) +
                             field(5, "unknown")))
          .same_bits(numbers));
  // Split into two messages.
  EXPECT_TRUE(parse(integers, field(1, field(1, field(1, "y"))) +
                                  example(field(3, field(1, "\x01\x02\xAC\x02"))))
                  .same_bits(numbers));
}

TEST(Example, ChangedBytesAreAnErrorOrReadAsProtobufReadsThem) {
  const std::string whole = serialize_example(
      {{"a", Floats{1, 2, 3}}, {"b", Integers{1, -2, 300}}, {"c", std::string("text")}});
  const ExampleParser parser(
      {{.name = "a", .length = kVariable},
       {.name = "b", .dtype = DType::I64, .length = kVariable},
       {.name = "c", .dtype = DType::U8, .length = kVariable, .missing = bytes_of("none")}});
  int read = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int change = 1; change < 256; ++change) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      std::vector<Tensor> tensors;
      if (!data_error([&] { tensors = parser.parse(bytes, "file", 0); }).empty()) continue;
      examples::Example example;
      if (!example.ParseFromString(bytes)) continue;  // damage in a feature that is not read
      ++read;
      std::map<std::string, examples::Feature> features;
      for (const examples::Entry& entry : example.features().entry()) {
        features[entry.name()] = entry.value();
      }
      const auto& floats = features["a"].floats().value();
      EXPECT_TRUE(tensors[0].same_bits(
          Tensor::of<float>(Floats(floats.begin(), floats.end()), {floats.size()})));
      const auto& integers = features["b"].integers().value();
      EXPECT_TRUE(tensors[1].same_bits(
          Tensor::of<std::int64_t>(Integers(integers.begin(), integers.end()), {integers.size()})));
      EXPECT_TRUE(tensors[2].same_bits(bytes_of(
          features["c"].has_byte_strings() ? features["c"].byte_strings().value(0) : "none")));
    }
  }
  EXPECT_GT(read, 1000);
}

}  // namespace
}  // namespace lockstep
