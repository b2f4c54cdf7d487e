// Helpers for tests of file formats: files of given bytes, gzip, and error messages.
#pragma once

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::testing {

inline void write_bytes(const std::filesystem::path& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(stream)), {});
}

struct ZipOptions {
  int level = 6;
  std::size_t flush = 0;  // bytes per deflate block; 0: zlib decides
};

// One gzip member.
inline std::string zipped(std::string_view bytes, ZipOptions options = {}) {
  z_stream stream{};
  deflateInit2(&stream, options.level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 64 + bytes.size(), '\0');
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  do {
    const std::size_t part =
        options.flush == 0 ? bytes.size() : std::min(options.flush, bytes.size());
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(part);
    bytes.remove_prefix(part);
    deflate(&stream, bytes.empty() ? Z_FINISH : Z_BLOCK);
  } while (!bytes.empty());
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Words that compress about threefold. Matches reach far back, so the decoder's window matters.
inline std::string prose(std::size_t size, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::string> words(2000);
  for (std::string& word : words) {
    for (std::size_t n = 2 + random() % 9; n > 0; --n) {
      word += static_cast<char>('a' + random() % 26);
    }
  }
  std::string text;
  while (text.size() < size) text += words[random() % words.size()] + (random() % 12 ? " " : "\n");
  text.resize(size);
  return text;
}

// The message of the DataError that a call throws; "" if it throws none.
inline std::string data_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep::testing
