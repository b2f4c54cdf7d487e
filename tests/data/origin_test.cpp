// Errors in later stages name the file and the record, whatever stages are in between.
#include <gtest/gtest.h>

#include "data/files.h"
#include "data/image_files.h"
#include "data/positions.h"
#include "lockstep/data/image/map_images.h"
#include "lockstep/data/records.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class Origin : public ::testing::Test {
 protected:
  // Lines "a0", "a1", … and "b0", …
  fs::path lines(const std::string& letter, int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) text += letter + std::to_string(i) + "\n";
    testing::write_bytes(folder_ / (letter + ".txt"), text);
    return folder_ / (letter + ".txt");
  }

  TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

Element no_b3(const Element& element) {
  const auto bytes = element.front().values<std::uint8_t>();
  if (bytes[0] == 'b' && bytes[1] == '3') throw std::runtime_error("it is unlucky");
  return element;
}

const MapOptions kMap{.spec = {{DType::U8, {2}, true}}, .parallel = 2, .name = "judge"};

TEST_F(Origin, OfARecordIsNamedAfterShufflesCachesAndInterleaves) {
  const std::vector<fs::path> files{lines("a", 5), lines("b", 6)};
  const std::string expected =
      fmt::format("[map judge] {}: record 3: it is unlucky", files[1].string());
  const Dataset in_order = read_text_lines(files);
  const Dataset in_turns = read_text_lines(files, {.cycle = 2, .parallel = 2});
  for (const Dataset& records : {in_order, in_turns}) {
    for (const Dataset& dataset :
         {records, records.shuffle(4), records.cache(), records.repeat(2).prefetch(2),
          records.concatenate(records), records.filter([](const Element&) { return true; }),
          records.zip(Dataset::range(20))
              .map([](const Element& e) { return Element{e[0]}; }, {.spec = kMap.spec})}) {
      EXPECT_EQ(message_of<DataError>([&] { all_of(dataset.map(no_b3, kMap)); }), expected);
    }
  }
}

// A saved position holds a file's name once, however many of its elements are in the buffer.
TEST_F(Origin, OfARecordInARestoredShuffleBufferIsStillNamed) {
  const std::vector<fs::path> files{lines("a", 5), lines("b", 6)};
  const Dataset shuffled = read_text_lines(files).shuffle({.buffer = 20, .seed = 3});
  const Element last = all_of(shuffled).back();
  const auto not_the_last = [&](const Element& element) {
    if (element.front().same_bits(last.front())) throw std::runtime_error("it is unlucky");
    return element;
  };
  MapOptions options = kMap;
  options.parallel = 1;  // so that the position is that of the buffer now, not some elements ago
  const Dataset dataset = shuffled.map(not_the_last, options);
  const auto iterator = dataset.iterator();
  ASSERT_EQ(rest_of(*iterator, 2).size(), 2u);
  const std::string position = iterator->save();
  std::size_t named = 0;
  for (std::size_t at = position.find("b.txt"); at != std::string::npos;
       at = position.find("b.txt", at + 1)) {
    ++named;
  }
  EXPECT_EQ(named, 1u);
  const auto resumed = dataset.iterator();
  resumed->restore(position);
  EXPECT_EQ(message_of<DataError>([&] { rest_of(*resumed); }),
            fmt::format("[map judge] {}: record {}: it is unlucky", *last.sample.file,
                        last.sample.record));
}

TEST_F(Origin, OfACachedElementIsItsRecordInTheCacheFile) {
  const Dataset records = read_text_lines({lines("b", 6)}).cache(folder_ / "kept");
  all_of(records);
  const std::string message = message_of<DataError>([&] { all_of(records.map(no_b3, kMap)); });
  EXPECT_TRUE(contains(message, "kept") && contains(message, ": record 3: it is unlucky"))
      << message;
}

TEST_F(Origin, OfADamagedImageInATfrecordIsNamedOnce) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    Bytes image = make_jpeg(20, 20);
    if (i == 2) image.resize(image.size() / 2);
    const std::string text(reinterpret_cast<const char*>(image.data()), image.size());
    append_tfrecord(bytes, serialize_example({{"image", std::vector<std::string>{text}},
                                              {"label", std::vector<std::int64_t>{1}}}));
  }
  const fs::path file = folder_ / "train.tfrecord";
  testing::write_bytes(file, bytes);
  const ImageReaderOptions reader{.height = 8, .width = 8};
  const Dataset decoded =
      datasets::image_examples({file}, {.cycle = 2})
          .shuffle(3)
          .map_into(
              decode_images(reader),
              {.spec = decoded_spec(reader, {{DType::I32, {}}}), .parallel = 2, .name = "decode"});
  const std::string message = message_of<DataError>([&] { all_of(decoded.batch(2).prefetch(1)); });
  EXPECT_TRUE(message.starts_with("[map decode] " + file.string() +
                                  ": record 2: [decode_jpeg] the image: "))
      << message;

  // A parse error already names the file and the record, and does so only once.
  std::string broken;
  append_tfrecord(broken, "no example");
  testing::write_bytes(file, broken);
  const std::string parsed = message_of<DataError>(
      [&] { all_of(read_examples({file}, {{.name = "n", .dtype = DType::I64}})); });
  EXPECT_TRUE(parsed.starts_with("[map parse] " + file.string() + ": record 0: its 10 bytes"))
      << parsed;
}

}  // namespace
}  // namespace lockstep
