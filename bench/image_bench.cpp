// Images a second on one core: random resized crop to 224², mirrored at random and normalised
// (ImageReader), against bare libjpeg-turbo that decodes the same regions and does nothing else.
//   image_bench [FOLDER of JPEGs] [--rounds N]
// Without a folder it makes its own JPEGs. The two take turns, round for round; the figures are the
// medians of the rounds, by the clock and by the time that this thread had a processor.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "lockstep/data/image/reader.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr int kMadePictures = 40;

struct File {
  std::string name;
  std::vector<std::byte> bytes;
};

std::vector<File> load(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension();
    if (extension == ".jpg" || extension == ".jpeg" || extension == ".JPEG") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<File> files;
  for (const auto& path : paths) {
    std::ifstream stream(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    files.push_back({path.string(), {begin, begin + text.size()}});
  }
  return files;
}

// A picture of 500×375 with slopes, edges and grain, at a quality of 90 and with chroma halved, as
// cameras store it.
File made_picture(int number) {
  constexpr int kWidth = 500;
  constexpr int kHeight = 375;
  RandomSequence random(kSeed, static_cast<std::uint64_t>(number));
  std::vector<std::uint8_t> pixels(kWidth * kHeight * 3);
  const double slope = random.uniform() * 0.02;
  const double wave = 0.05 + random.uniform() * 0.3;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      for (int c = 0; c < 3; ++c) {
        const double edge = (x / 60 + y / 45 + c) % 2 == 0 ? 30 : -30;
        const double value = 128 + 40 * std::sin(wave * x + slope * x * y + c) +
                             30 * std::cos(0.07 * y + c) + edge + 24 * (random.uniform() - 0.5);
        pixels[static_cast<std::size_t>((y * kWidth + x) * 3 + c)] =
            static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
  jpeg_compress_struct library{};
  jpeg_error_mgr errors{};
  library.err = jpeg_std_error(&errors);
  jpeg_create_compress(&library);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&library, &memory, &size);
  library.image_width = kWidth;
  library.image_height = kHeight;
  library.input_components = 3;
  library.in_color_space = JCS_RGB;
  jpeg_set_defaults(&library);
  jpeg_set_quality(&library, 90, TRUE);
  jpeg_start_compress(&library, TRUE);
  while (library.next_scanline < library.image_height) {
    JSAMPROW row = pixels.data() + std::size_t{library.next_scanline} * kWidth * 3;
    jpeg_write_scanlines(&library, &row, 1);
  }
  jpeg_finish_compress(&library);
  jpeg_destroy_compress(&library);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  File file{fmt::format("made {}", number), {begin, begin + size}};
  std::free(memory);
  return file;
}

// Decodes regions as the library's examples do: its defaults, rows one by one into a buffer.
class BareDecoder {
 public:
  BareDecoder() {
    library_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&library_);
  }
  ~BareDecoder() { jpeg_destroy_decompress(&library_); }
  BareDecoder(const BareDecoder&) = delete;
  BareDecoder& operator=(const BareDecoder&) = delete;

  void decode(const File& file, const ImageRegion& region) {
    jpeg_mem_src(&library_, reinterpret_cast<const unsigned char*>(file.bytes.data()),
                 static_cast<unsigned long>(file.bytes.size()));
    jpeg_read_header(&library_, TRUE);
    library_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&library_);
    auto offset = static_cast<JDIMENSION>(region.x);
    auto width = static_cast<JDIMENSION>(region.width);
    jpeg_crop_scanline(&library_, &offset, &width);
    jpeg_skip_scanlines(&library_, static_cast<JDIMENSION>(region.y));
    const std::size_t stride = std::size_t{library_.output_width} * 3;
    pixels_.resize(stride * static_cast<std::size_t>(region.height));
    for (int y = 0; y < region.height; ++y) {
      JSAMPROW row = pixels_.data() + stride * static_cast<std::size_t>(y);
      jpeg_read_scanlines(&library_, &row, 1);
    }
    jpeg_abort_decompress(&library_);
  }

 private:
  jpeg_decompress_struct library_{};
  jpeg_error_mgr errors_{};
  std::vector<unsigned char> pixels_;
};

struct Times {
  std::vector<double> wall;
  std::vector<double> cpu;
};

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Work>
void measure(Times& times, Work work) {
  const double cpu = processor_seconds();
  const std::int64_t wall = now_ns();
  work();
  times.wall.push_back(static_cast<double>(now_ns() - wall) * 1e-9);
  times.cpu.push_back(processor_seconds() - cpu);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void run(const std::vector<File>& files, int rounds) {
  const auto with = [](bool antialias, ColorJitter jitter) {
    return ImageReaderOptions{.crop = ImageCrop::Random,
                              .mirror_probability = 0.5f,
                              .color_jitter = jitter,
                              .antialias = antialias,
                              .rescale = 1.0f / 255,
                              .mean = kImageNetMean,
                              .deviation = kImageNetDeviation};
  };
  struct Variant {
    const char* name;
    ImageReader reader;
    Times times = {};
  };
  const ColorJitter jitter{.brightness = 0.4f, .contrast = 0.4f, .saturation = 0.4f, .hue = 0.1f};
  std::vector<Variant> variants;
  variants.push_back({"reader, bilinear", ImageReader(with(false, {}))});
  variants.push_back({"reader, bilinear antialiased", ImageReader(with(true, {}))});
  variants.push_back({"reader, antialiased, colour jitter", ImageReader(with(true, jitter))});

  BareDecoder bare;
  Times bare_times;
  std::vector<std::byte> sample(variants[0].reader.sample_bytes());
  std::int64_t scaled = 0;
  for (int round = 0; round < rounds; ++round) {
    // The crops of a round are drawn beforehand, and are the same for all.
    std::vector<ImageRegion> regions;
    for (std::size_t i = 0; i < files.size(); ++i) {
      RandomSequence random(combine(kSeed, static_cast<std::uint64_t>(round)), i);
      const ImageInfo info = read_image_info(files[i].bytes, files[i].name);
      regions.push_back(variants[0].reader.draw(info, random).crop);
    }
    measure(bare_times, [&] {
      for (std::size_t i = 0; i < files.size(); ++i) bare.decode(files[i], regions[i]);
    });
    for (Variant& variant : variants) {
      measure(variant.times, [&] {
        for (std::size_t i = 0; i < files.size(); ++i) {
          RandomSequence random(combine(kSeed, static_cast<std::uint64_t>(round)), i);
          const ImageSample read =
              variant.reader.read(files[i].bytes, files[i].name, random, sample);
          if (&variant == &variants[0]) scaled += read.scale > 1;
        }
      });
    }
  }
  const auto count = static_cast<double>(files.size());
  const double bare_wall = median(bare_times.wall);
  const double bare_cpu = median(bare_times.cpu);
  fmt::print("{} files, {} rounds; {:.0f}% of the regions were decoded at a reduced scale\n",
             files.size(), rounds,
             100.0 * static_cast<double>(scaled) / (count * static_cast<double>(rounds)));
  fmt::print("{:<36} {:>9} {:>7} {:>13} {:>7}\n", "", "images/s", "ratio", "per CPU second",
             "ratio");
  const auto print = [&](const char* name, const Times& times) {
    const double wall = median(times.wall);
    const double cpu = median(times.cpu);
    fmt::print("{:<36} {:>9.0f} {:>7.3f} {:>13.0f} {:>7.3f}\n", name, count / wall,
               bare_wall / wall, count / cpu, bare_cpu / cpu);
  };
  print("bare libjpeg-turbo, the same regions", bare_times);
  for (const Variant& variant : variants) print(variant.name, variant.times);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  std::string folder;
  int rounds = 15;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else {
      folder = argv[i];
    }
  }
  std::vector<File> files;
  if (folder.empty()) {
    for (int i = 0; i < kMadePictures; ++i) files.push_back(made_picture(i));
  } else {
    files = load(folder);
  }
  if (files.empty()) {
    fmt::print(stderr, "image_bench: no .jpg below {}\n", folder);
    return 1;
  }
  run(files, rounds);
}
