// EventWriter: writes scalars to an event file for TensorBoard. The file is a sequence of records
// (TFRecord framing): length (u64), masked CRC-32C of the length, bytes, masked CRC-32C of the
// bytes, little-endian; the bytes are an Event of event.proto.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep {

class EventWriter {
 public:
  // Creates the folder and a new file in it; DataError, naming it, if that fails.
  explicit EventWriter(const std::filesystem::path& folder);

  void scalar(const std::string& tag, double value, std::int64_t step);
  void flush();
  // Must be the last call. DataError, naming the file, if something could not be written.
  void close();
  const std::filesystem::path& file() const { return file_; }

 private:
  void record(const std::string& bytes);

  std::filesystem::path file_;
  std::ofstream stream_;
};

}  // namespace lockstep
