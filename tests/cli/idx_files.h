// A small data set as IDX files.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep {

struct IdxOptions {
  int train = 40;
  int test = 8;
  int shade = 0;  // of the first pixel of every picture
};

// Pictures of 28 × 28 bytes in three classes.
inline void write_idx(const std::filesystem::path& folder, const IdxOptions& options) {
  std::filesystem::create_directories(folder);
  const auto number = [](int value) {
    std::string bytes(4, '\0');
    for (int i = 0; i < 4; ++i)
      bytes[static_cast<std::size_t>(i)] = static_cast<char>(value >> (24 - 8 * i));
    return bytes;
  };
  const auto write = [&](const std::string& part, int count) {
    std::string images = number(0x803) + number(count) + number(28) + number(28);
    std::string labels = number(0x801) + number(count);
    for (int i = 0; i < count; ++i) {
      std::string picture(28 * 28, static_cast<char>(40 * (i % 3)));
      picture[0] = static_cast<char>(options.shade);
      images += picture;
      labels += static_cast<char>(i % 3);
    }
    std::ofstream(folder / (part + "-images-idx3-ubyte"), std::ios::binary) << images;
    std::ofstream(folder / (part + "-labels-idx1-ubyte"), std::ios::binary) << labels;
  };
  write("train", options.train);
  write("t10k", options.test);
}

}  // namespace lockstep
