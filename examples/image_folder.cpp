// Trains ResNet-50 on a folder of pictures, one subfolder per class, on several replicas. The input
// pipeline reads, decodes, crops, mirrors and normalises files while the replicas compute.
//
//   image_folder [--quick] [--size 224] [--batch 32] [--epochs 10] [--replicas 2] [folder]
//
// Without a folder it paints a few pictures into a temporary one and trains for a few steps at a
// small size: enough to show the program, not to learn anything.
#include <lockstep/lockstep.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ls = lockstep;
namespace fs = std::filesystem;

namespace {

struct Options {
  fs::path folder = {};
  std::int64_t size = 224;  // side in pixels
  std::int64_t batch = 32;  // global
  std::int64_t epochs = 10;
  std::int64_t replicas = 2;
  double held_back = 0.2;  // fraction of the pictures for validation
};
constexpr std::int64_t kPaintedSide = 48;
constexpr int kPaintedOfAClass = 4;

// Writes an uncompressed PNG file, which needs no library.
class PngWriter {
 public:
  PngWriter(std::int64_t side, const std::string& rgb) {
    std::string rows;
    for (std::int64_t y = 0; y < side; ++y) {
      rows += '\0';  // filter type: none
      rows.append(rgb, static_cast<std::size_t>(y * side) * 3, static_cast<std::size_t>(side) * 3);
    }
    file_ = "\x89PNG\r\n\x1a\n";
    chunk("IHDR", big_endian(static_cast<std::uint32_t>(side)) +
                      big_endian(static_cast<std::uint32_t>(side)) +
                      std::string("\x08\x02\x00\x00\x00", 5));
    chunk("IDAT", stored(rows));
    chunk("IEND", "");
  }
  void write(const fs::path& path) const {
    std::ofstream stream(path, std::ios::binary);
    stream.write(file_.data(), static_cast<std::streamsize>(file_.size()));
    if (!stream.flush()) ls::fail<ls::DataError>("[image_folder] cannot write {}", path.string());
  }

 private:
  static std::string big_endian(std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
    return bytes;
  }
  // A zlib stream of uncompressed blocks, followed by the Adler-32 checksum.
  static std::string stored(const std::string& data) {
    constexpr std::size_t kMost = 65'535;
    std::string stream = "\x78\x01";
    std::uint32_t a = 1;
    std::uint32_t b = 0;
    for (std::size_t at = 0; at < data.size(); at += kMost) {
      const std::size_t size = std::min(kMost, data.size() - at);
      stream += at + size == data.size() ? '\1' : '\0';
      for (const std::size_t length : {size, ~size}) {
        stream += static_cast<char>(length & 0xFF);
        stream += static_cast<char>(length >> 8 & 0xFF);
      }
      stream.append(data, at, size);
    }
    for (const char c : data) {
      a = (a + static_cast<unsigned char>(c)) % 65'521;
      b = (b + a) % 65'521;
    }
    return stream + big_endian(b << 16 | a);
  }
  void chunk(const std::string& kind, const std::string& data) {
    const std::string checked = kind + data;
    std::uint32_t crc = 0xFFFFFFFF;
    for (const char c : checked) {
      crc ^= static_cast<unsigned char>(c);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0u);
    }
    file_ += big_endian(static_cast<std::uint32_t>(data.size())) + checked + big_endian(~crc);
  }

  std::string file_;
};

// A folder that is removed at the end of the program.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "image_folder-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      ls::fail<ls::DataError>("[image_folder] cannot create the folder {}", name);
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Paints horizontal, vertical and diagonal stripes, one class each, in random colours.
void paint(const fs::path& folder) {
  const std::array<const char*, 3> classes = {"horizontal", "vertical", "diagonal"};
  ls::RandomSequence random(1, 1);
  for (std::size_t kind = 0; kind < classes.size(); ++kind) {
    fs::create_directories(folder / classes[kind]);
    for (int picture = 0; picture < kPaintedOfAClass; ++picture) {
      std::array<float, 3> color;
      for (float& part : color) part = random.uniform();
      const auto width = static_cast<std::int64_t>(3 + random.below(6));
      std::string rgb;
      for (std::int64_t y = 0; y < kPaintedSide; ++y) {
        for (std::int64_t x = 0; x < kPaintedSide; ++x) {
          const std::int64_t along = kind == 0 ? y : kind == 1 ? x : x + y;
          const float light = along / width % 2 == 0 ? 255.0f : 90.0f;
          for (const float part : color) rgb += static_cast<char>(static_cast<int>(light * part));
        }
      }
      PngWriter(kPaintedSide, rgb)
          .write(folder / classes[kind] / (std::to_string(picture) + ".png"));
    }
  }
}

std::int64_t number_of(std::string_view option, std::string_view text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ls::require(error == std::errc() && stop == text.data() + text.size() && value > 0,
              "{} takes a number above 0, not '{}'", option, text);
  return value;
}

Options parse(int argc, char** argv) {
  fs::path folder;
  std::map<std::string_view, std::int64_t> given;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") continue;  // without a folder it is always quick
    if (!argument.starts_with("--")) {
      folder = argument;
      continue;
    }
    ls::require(i + 1 < argc, "{} takes a number", argument);
    given[argument] = number_of(argument, argv[++i]);
  }
  Options options{.folder = folder};
  if (folder.empty()) options = {.size = 32, .batch = 6, .epochs = 1, .held_back = 0};
  for (const auto& [option, number] : given) {
    if (option == "--size") {
      options.size = number;
    } else if (option == "--batch") {
      options.batch = number;
    } else if (option == "--epochs") {
      options.epochs = number;
    } else if (option == "--replicas") {
      options.replicas = number;
    } else {
      ls::fail<ls::UsageError>("there is no option {}", option);
    }
  }
  return options;
}

// A subset of the pictures, normalised as ImageNet networks expect; for training with random crops,
// half of them mirrored.
ls::ImageDirectory read(const Options& options, ls::Subset subset) {
  const bool training = subset != ls::Subset::Validation;
  return ls::image_dataset_from_directory(
      options.folder, {.label_mode = ls::LabelMode::Categorical,
                       .batch_size = options.batch,
                       .height = static_cast<int>(options.size),
                       .width = static_cast<int>(options.size),
                       .seed = 1,
                       .validation_split = options.held_back,
                       .subset = subset,
                       .reader = {.crop = training ? ls::ImageCrop::Random : ls::ImageCrop::Whole,
                                  .mirror_probability = training ? 0.5f : 0.0f,
                                  .rescale = 1.0f / 255,
                                  .mean = ls::kImageNetMean,
                                  .deviation = ls::kImageNetDeviation}});
}

void train(const Options& options) {
  const bool validate = options.held_back > 0;
  const auto pictures = read(options, validate ? ls::Subset::Training : ls::Subset::All);
  const auto classes = static_cast<std::int64_t>(pictures.class_names.size());
  ls::FitOptions fit{.epochs = options.epochs, .callbacks = {ls::ProgressBar(std::cout)}};
  if (validate) fit.validation_data = read(options, ls::Subset::Validation).dataset;

  ls::MirroredOptions devices;
  for (std::int64_t r = 0; r < options.replicas; ++r) {
    devices.devices.push_back("cpu:" + std::to_string(r));
  }
  const ls::MirroredStrategy strategy(devices);
  ls::Model model = ls::applications::ResNet50(
      {.input_shape = {options.size, options.size, 3}, .classes = classes});
  model.compile(
      {.strategy = strategy,
       .optimizer = ls::SGD({.learning_rate = 0.1 * static_cast<double>(options.batch) / 256,
                             .momentum = 0.9,
                             .weight_decay = 1e-4}),
       .loss = ls::CategoricalCrossentropy({.from_logits = true}),
       .metrics = {"accuracy"}});
  std::cout << pictures.files.size() << " pictures of " << classes << " classes, " << options.size
            << "², batch " << options.batch << " over " << strategy.num_replicas_in_sync()
            << " replicas\n";
  const ls::History history =
      model.fit(strategy.distribute(pictures.dataset.prefetch(ls::AUTOTUNE)), fit);
  std::cout << history.report();
}

}  // namespace

int main(int argc, char** argv) try {
  Options options = parse(argc, argv);
  std::optional<TemporaryFolder> painted;
  if (options.folder.empty()) {
    options.folder = painted.emplace().path();
    paint(options.folder);
  }
  train(options);
} catch (const ls::Error& error) {
  std::cerr << error.what() << '\n';
  return 2;
}
