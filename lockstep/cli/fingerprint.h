// A fingerprint of files: data sets with the same fingerprint are considered the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::cli {

struct Fingerprint {
  std::string text;    // 16 hexadecimal digits
  std::string covers;  // what was read, for people
  std::int64_t files = 0;
  std::int64_t bytes = 0;
};

// Hashes the files' names relative to `root`, their sizes and their contents; neither the location
// of `root` nor file times count. Up to 512 MiB in total is read completely. Beyond that, the
// contents of 1024 evenly spaced files count, with their first, middle and last 64 KiB: at most 192
// MiB is read. DataError, naming the file, if one cannot be read.
Fingerprint fingerprint(const std::filesystem::path& root,
                        std::vector<std::filesystem::path> files);

}  // namespace lockstep::cli
