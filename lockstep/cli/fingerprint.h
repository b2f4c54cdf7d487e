// What files hold, as a short text: two data sets with the same fingerprint are the same one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::cli {

struct Fingerprint {
  std::string text;    // 16 hexadecimal digits
  std::string covers;  // what was looked at, for people
  std::int64_t files = 0;
  std::int64_t bytes = 0;
};

// Of the files' names below `root`, their sizes and their contents; where `root` lies, and when the
// files were written, does not count. Files of up to 512 MiB together are read whole. Of more, all
// names and sizes count, and of 1024 files spread evenly over them the first, the middle and the
// last 64 KiB: at most 192 MiB are read. DataError, naming the file, where one cannot be read.
Fingerprint fingerprint(const std::filesystem::path& root,
                        std::vector<std::filesystem::path> files);

}  // namespace lockstep::cli
