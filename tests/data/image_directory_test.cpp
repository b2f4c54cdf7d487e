// Folders of pictures, read like Keras's image_dataset_from_directory.
#include "lockstep/data/image_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "data/image_files.h"
#include "data/positions.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class ImageDirectoryTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const Bytes& bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  // A uniformly grey picture, whose shade identifies the file.
  void write_grey(const std::string& name, int value) const {
    write(name, make_png(6, 4, {.color_type = PNG_COLOR_TYPE_GRAY},
                         std::vector<std::uint8_t>(24, static_cast<std::uint8_t>(value))));
  }

  void write_animals() const {
    for (int i = 0; i < 6; ++i) {
      write_grey("cat/c" + std::to_string(i) + ".png", 10 + i);
      write_grey("dog/deep/d" + std::to_string(i) + ".PNG", 20 + i);
    }
    for (int i = 0; i < 3; ++i) write_grey("ape/a" + std::to_string(i) + ".png", i);
    std::ofstream(folder_ / "cat" / "notes.txt") << "no picture";
  }

  TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

using Seen = std::multiset<std::pair<int, int>>;  // grey and label

Seen seen_in(const Dataset& batches) {
  Seen seen;
  for (const Element& batch : all_of(batches)) {
    const std::int64_t pixels = batch[0].elements() / batch[0].shape()[0];
    for (std::int64_t row = 0; row < batch[0].shape()[0]; ++row) {
      seen.emplace(
          static_cast<int>(batch[0].values<float>()[static_cast<std::size_t>(row * pixels)]),
          batch.size() > 1 ? batch[1].values<std::int32_t>()[static_cast<std::size_t>(row)] : -1);
    }
  }
  return seen;
}

TEST_F(ImageDirectoryTest, FollowsKerasDefaults) {
  write_animals();
  const ImageDirectory animals = image_dataset_from_directory(folder_);
  EXPECT_EQ(animals.class_names, (std::vector<std::string>{"ape", "cat", "dog"}));
  EXPECT_EQ(animals.files.size(), 15u);
  const std::vector<ElementSpec> spec = animals.dataset.element_spec();
  ASSERT_EQ(spec.size(), 2u);
  EXPECT_EQ(spec[0], (ElementSpec{.dtype = DType::F32, .shape = {32, 256, 256, 3}}));
  EXPECT_EQ(spec[1], (ElementSpec{.dtype = DType::I32, .shape = {32}}));
  Seen expected;
  for (int i = 0; i < 6; ++i) expected.insert({{10 + i, 1}, {20 + i, 2}});
  for (int i = 0; i < 3; ++i) expected.insert({i, 0});
  EXPECT_EQ(seen_in(animals.dataset), expected);
  // Shuffled differently in every epoch.
  const auto order = [&](std::uint64_t epoch) {
    std::vector<std::uint64_t> numbers;
    for (const Element& element :
         all_of(image_dataset_from_directory(folder_,
                                             {.batch_size = std::nullopt, .height = 2, .width = 2})
                    .dataset,
                epoch)) {
      numbers.push_back(element.sample.number);
    }
    return numbers;
  };
  EXPECT_NE(order(0), order(1));
  EXPECT_EQ(order(1), order(1));
}

TEST_F(ImageDirectoryTest, GivesTheRequestedLabels) {
  write_animals();
  const auto with = [&](ImageDirectoryOptions options) {
    options.height = options.width = 3;
    options.shuffle = false;
    options.batch_size = std::nullopt;
    return all_of(image_dataset_from_directory(folder_, options).dataset);
  };
  const std::vector<Element> categorical = with({.label_mode = LabelMode::Categorical});
  EXPECT_EQ(categorical[0][1].shape(), Shape({3}));
  EXPECT_EQ(categorical[14][1].values<float>()[2], 1);
  EXPECT_EQ(categorical[14][1].values<float>()[0], 0);
  const std::vector<Element> binary =
      with({.label_mode = LabelMode::Binary, .class_names = {"dog", "cat"}});
  ASSERT_EQ(binary.size(), 12u);
  EXPECT_EQ(binary[0][0].values<float>()[0], 20);  // dogs come first, as requested
  EXPECT_EQ(binary[0][1].values<float>()[0], 0);
  EXPECT_EQ(binary[11][1].values<float>()[0], 1);
  EXPECT_EQ(with({.labels = ImageLabels::None}).front().size(), 1u);
  EXPECT_EQ(with({.label_mode = LabelMode::None}).front().size(), 1u);
  std::vector<std::int32_t> own(15, 4);
  own[1] = 7;
  const std::vector<Element> given = with({.labels = ImageLabels::Given, .given_labels = own});
  EXPECT_EQ(given[1][1].item(), 7);
  EXPECT_EQ(given[2][1].item(), 4);

  EXPECT_THROW(with({.label_mode = LabelMode::Binary}), UsageError);
  EXPECT_THROW(with({.class_names = {"bird"}}), UsageError);
  EXPECT_THROW(with({.labels = ImageLabels::Given, .given_labels = {1}}), UsageError);
}

TEST_F(ImageDirectoryTest, SystemFilesAreNeitherClassesNorPictures) {
  write_animals();
  write_grey(".ipynb_checkpoints/c0.png", 1);
  write_grey("__MACOSX/cat/c0.png", 1);
  write_grey("cat/.thumbnails/c0.png", 1);
  write_grey("cat/._c0.png", 1);
  write("cat/Thumbs.db", {});
  const ImageDirectory animals = image_dataset_from_directory(folder_);
  EXPECT_EQ(animals.class_names, (std::vector<std::string>{"ape", "cat", "dog"}));
  EXPECT_EQ(animals.files.size(), 15u);
  TemporaryFolder only_hidden;
  fs::create_directories(fs::path(only_hidden.path()) / ".git");
  fs::copy_file(folder_ / "cat" / "c0.png", fs::path(only_hidden.path()) / ".git" / "c0.png");
  EXPECT_FALSE(is_image_directory(only_hidden.path()));
}

TEST_F(ImageDirectoryTest, AnotherFolderUsesTheClassNumbersOfTraining) {
  for (const char* name : {"train/ape/1.png", "train/cat/1.png", "train/dog/1.png"}) {
    write_grey(name, 1);
  }
  write_grey("val/dog/7.png", 7);
  fs::create_directories(folder_ / "val" / "cat");  // empty; ape is missing
  const std::vector<std::string> classes =
      image_dataset_from_directory(folder_ / "train").class_names;
  const ImageDirectoryOptions options{.known_classes = classes};
  const ImageDirectory val = image_dataset_from_directory(folder_ / "val", options);
  EXPECT_EQ(val.class_names, classes);
  EXPECT_EQ(seen_in(val.dataset), (Seen{{7, 2}}));
  const ImageDirectoryOptions categorical{.label_mode = LabelMode::Categorical,
                                          .known_classes = classes};
  EXPECT_EQ(
      image_dataset_from_directory(folder_ / "val", categorical).dataset.element_spec()[1].shape,
      Shape({32, 3}));

  write_grey("val/emu/1.png", 1);
  const std::string message =
      message_of<DataError>([&] { image_dataset_from_directory(folder_ / "val", options); });
  EXPECT_TRUE(contains(message, "class emu is not one of the 3") &&
              contains(message, "ape, cat, dog"))
      << message;
  fs::remove_all(folder_ / "val" / "emu");
  fs::remove_all(folder_ / "val" / "dog");
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { image_dataset_from_directory(folder_ / "val", options); }),
      "none of the classes has a JPEG or PNG file"));
  EXPECT_THROW(image_dataset_from_directory(folder_ / "val",
                                            {.class_names = {"cat"}, .known_classes = {"cat"}}),
               UsageError);
}

TEST_F(ImageDirectoryTest, ASingleClassIsRefusedUnlessItIsNamed) {
  write_grey("train/cat/1.png", 1);
  write_grey("train/dog/1.png", 1);
  const std::string message = message_of<DataError>([&] { image_dataset_from_directory(folder_); });
  EXPECT_TRUE(contains(message, "train is the only class")) << message;
  EXPECT_EQ(image_dataset_from_directory(folder_, {.class_names = {"train"}}).files.size(), 2u);
  EXPECT_EQ(image_dataset_from_directory(folder_, {.label_mode = LabelMode::None}).files.size(),
            2u);
}

TEST_F(ImageDirectoryTest, FoldersForTrainingAndValidationAreFound) {
  EXPECT_FALSE(find_image_folders(folder_));
  write_grey("train/cat/1.png", 1);
  write_grey("train/dog/1.png", 1);
  const auto alone = find_image_folders(folder_);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->train, folder_ / "train");
  EXPECT_FALSE(alone->validation);
  write_grey("test/unlabelled.png", 1);  // no folders of classes
  EXPECT_FALSE(find_image_folders(folder_)->validation);
  write_grey("val/dog/1.png", 1);
  EXPECT_EQ(find_image_folders(folder_)->validation, folder_ / "val");

  const auto classes = find_image_folders(folder_ / "train");
  ASSERT_TRUE(classes);
  EXPECT_EQ(classes->train, folder_ / "train");
  EXPECT_FALSE(classes->validation);
}

TEST_F(ImageDirectoryTest, LinksToFilesAreFollowedAndLinksToFoldersOnRequest) {
  write_animals();
  write_grey("elsewhere.png", 50);
  fs::create_directories(folder_.string() + "-far");
  fs::copy_file(folder_ / "elsewhere.png", folder_.string() + "-far/x.png");
  fs::create_symlink(folder_ / "elsewhere.png", folder_ / "cat" / "link.png");
  fs::create_directory_symlink(folder_.string() + "-far", folder_ / "cat" / "far");
  EXPECT_EQ(image_dataset_from_directory(folder_).files.size(), 16u);
  EXPECT_EQ(image_dataset_from_directory(folder_, {.follow_links = true}).files.size(), 17u);
  fs::remove_all(folder_.string() + "-far");

  fs::remove(folder_ / "elsewhere.png");
  const std::string message = message_of<DataError>([&] { image_dataset_from_directory(folder_); });
  EXPECT_TRUE(contains(message, "link.png: the link is broken")) << message;
  EXPECT_EQ(image_dataset_from_directory(folder_, {.on_error = OnError::Skip}).files.size(), 15u);
}

TEST_F(ImageDirectoryTest, ASplitPutsEveryFileInExactlyOneSubset) {
  write_animals();
  for (const bool shuffled : {true, false}) {
    const auto part = [&](Subset subset) {
      return image_dataset_from_directory(
          folder_, {.shuffle = shuffled, .seed = 3, .validation_split = 0.2, .subset = subset});
    };
    const ImageDirectory training = part(Subset::Training);
    const ImageDirectory validation = part(Subset::Validation);
    EXPECT_EQ(training.files.size(), 12u);
    EXPECT_EQ(validation.files.size(), 3u);
    std::set<fs::path> all(training.files.begin(), training.files.end());
    all.insert(validation.files.begin(), validation.files.end());
    EXPECT_EQ(all.size(), 15u);
    EXPECT_EQ(validation.labels == std::vector<std::int32_t>({2, 2, 2}), !shuffled);
  }
  EXPECT_THROW(image_dataset_from_directory(folder_, {.validation_split = 0.5}), UsageError);
  EXPECT_THROW(image_dataset_from_directory(folder_, {.subset = Subset::Training}), UsageError);
}

TEST_F(ImageDirectoryTest, ColourModeCropAndSizeFollowTheOptions) {
  write("a/wide.jpg", make_jpeg(64, 32));
  const auto one = [&](ImageDirectoryOptions options) {
    options.class_names = {"a"};
    options.batch_size = std::nullopt;
    options.height = 16;
    options.width = 16;
    return all_of(image_dataset_from_directory(folder_, options).dataset).front()[0];
  };
  EXPECT_EQ(one({.color_mode = ColorMode::Grayscale}).shape(), Shape({16, 16, 1}));
  EXPECT_EQ(one({.color_mode = ColorMode::Rgba}).shape(), Shape({16, 16, 4}));
  EXPECT_FALSE(one({}).same_bits(one({.crop_to_aspect_ratio = true})));
  EXPECT_FALSE(one({}).same_bits(one({.interpolation = Interpolation::Nearest})));
}

TEST_F(ImageDirectoryTest, AugmentedSamplesDependOnNeitherThreadsNorPosition) {
  for (int i = 0; i < 12; ++i) {
    write("k" + std::to_string(i % 2) + "/p" + std::to_string(i) + ".jpg",
          make_jpeg(40 + i, 30 + i));
  }
  Variants variants{"images", {}};
  for (const int threads : {1, 2, 4}) {
    ImageDirectoryOptions options{.batch_size = 5, .height = 8, .width = 8, .parallel = threads};
    options.reader.crop = ImageCrop::Random;
    options.reader.mirror_probability = 0.5f;
    variants.datasets.push_back(image_dataset_from_directory(folder_, options).dataset);
  }
  expect_positions_hold(variants, 1);
  EXPECT_FALSE(same_elements(all_of(variants.datasets[0], 0), all_of(variants.datasets[0], 1)));
}

// One thread reads all files into the same buffer, which may still hold the end of a longer one.
TEST_F(ImageDirectoryTest, AShortFileIsNotMixedWithALongerOneBefore) {
  const std::vector<Bytes> files = {make_jpeg(64, 48), make_jpeg(300, 200), make_jpeg(16, 16),
                                    make_jpeg(400, 300), make_jpeg(33, 20)};
  for (std::size_t i = 0; i < files.size(); ++i) {
    write("a/" + std::to_string(i) + ".jpg", files[i]);
  }
  const ImageDirectoryOptions options{.class_names = {"a"},
                                      .batch_size = std::nullopt,
                                      .height = 24,
                                      .width = 24,
                                      .shuffle = false,
                                      .parallel = 1};
  const std::vector<Element> read = all_of(image_dataset_from_directory(folder_, options).dataset);
  ASSERT_EQ(read.size(), files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    ImageReader reader({.height = 24, .width = 24});
    RandomSequence random(1, 1);
    Tensor alone(DType::F32, reader.shape());
    reader.read(files[i], "alone", random, {alone.raw(), alone.bytes()});
    EXPECT_TRUE(read[i][0].same_bits(alone)) << i;
  }

  // The end that was cut off is still in the buffer.
  Bytes cut = files[3];
  cut.resize(cut.size() / 2);
  write("a/4.jpg", cut);
  EXPECT_TRUE(contains(message_of<DataError>(
                           [&] { all_of(image_dataset_from_directory(folder_, options).dataset); }),
                       "cut off"));
}

TEST_F(ImageDirectoryTest, ProblemsAreNamed) {
  const auto message = [&](ImageDirectoryOptions options = {}) {
    return message_of<DataError>(
        [&] { all_of(image_dataset_from_directory(folder_, options).dataset); });
  };
  EXPECT_TRUE(contains(message_of<DataError>([&] { image_dataset_from_directory(folder_ / "x"); }),
                       "no such folder"));
  EXPECT_TRUE(contains(message(), "no folders"));
  EXPECT_TRUE(contains(message({.labels = ImageLabels::None}), "no JPEG or PNG"));
  write_animals();
  fs::create_directories(folder_ / "bird");
  EXPECT_TRUE(contains(message(), "bird: the class has no JPEG or PNG"));
  fs::remove(folder_ / "bird");
  write("cat/moving.gif", {});
  EXPECT_TRUE(contains(message(), "moving.gif"));
  fs::remove(folder_ / "cat" / "moving.gif");

  Bytes broken = make_jpeg(40, 30);
  broken.resize(broken.size() / 2);
  write("cat/broken.jpg", broken);
  const std::string text = message();
  EXPECT_TRUE(contains(text, "[map read images]") && contains(text, "broken.jpg")) << text;
  const auto iterator =
      image_dataset_from_directory(folder_, {.on_error = OnError::Skip}).dataset.iterator();
  std::int64_t samples = 0;
  while (const std::optional<Element> batch = iterator->next()) samples += (*batch)[1].elements();
  EXPECT_EQ(samples, 15);
  EXPECT_EQ(iterator->report().skipped, 1);
  EXPECT_TRUE(contains(iterator->report().text(), "broken.jpg"));

  // A file that is deleted between listing and reading.
  fs::remove(folder_ / "cat" / "broken.jpg");
  const ImageDirectory listed = image_dataset_from_directory(folder_);
  fs::remove(folder_ / "ape" / "a1.png");
  EXPECT_TRUE(contains(message_of<DataError>([&] { all_of(listed.dataset); }), "a1.png"));
}

}  // namespace
}  // namespace lockstep
