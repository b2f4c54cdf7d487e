// Images per second on one core: ImageReader with random resized crop to 224², random mirroring and
// normalisation, against bare libjpeg-turbo, which only decodes the same regions.
//   image_bench [FOLDER of JPEGs] [--rounds N]
// Without a folder it generates JPEGs. The contenders take turns in every round; the figures are
// medians over the rounds, in wall time and in CPU time of the thread.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "jpeg_files.h"
#include "lockstep/data/image/reader.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

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
    // The crops of a round are drawn in advance and are the same for all contenders.
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
