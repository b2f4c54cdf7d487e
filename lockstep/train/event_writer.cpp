#include "lockstep/train/event_writer.h"

#include <array>
#include <chrono>

#include "lockstep/base/error.h"
#include "lockstep/train/event.pb.h"

namespace lockstep {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder & 1) != 0 ? (remainder >> 1) ^ 0x82F63B78u : remainder >> 1;
    }
    table[byte] = remainder;
  }
  return table;
}

template <class T>
void append_little_endian(std::string& bytes, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
}

double wall_time() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

// events.out.tfevents.<seconds>.lockstep, with a number behind it where that is taken already.
std::filesystem::path free_name(const std::filesystem::path& folder) {
  const std::string stem =
      fmt::format("events.out.tfevents.{}.lockstep", static_cast<std::int64_t>(wall_time()));
  std::filesystem::path file = folder / stem;
  for (int number = 1; std::filesystem::exists(file); ++number) {
    file = folder / fmt::format("{}.{}", stem, number);
  }
  return file;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_table();
  std::uint32_t remainder = 0xFFFFFFFFu;
  for (const char byte : bytes) {
    remainder = kTable[(remainder ^ static_cast<unsigned char>(byte)) & 0xFF] ^ (remainder >> 8);
  }
  return remainder ^ 0xFFFFFFFFu;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

EventWriter::EventWriter(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail<DataError>("[tensorboard] the folder {} cannot be made: {}", folder.string(),
                    error.message());
  }
  file_ = free_name(folder);
  stream_.open(file_, std::ios::binary);
  events::Event event;
  event.set_wall_time(wall_time());
  event.set_file_version("brain.Event:2");
  record(event.SerializeAsString());
  flush();
}

void EventWriter::scalar(const std::string& tag, double value, std::int64_t step) {
  events::Event event;
  event.set_wall_time(wall_time());
  event.set_step(step);
  events::Summary::Value* entry = event.mutable_summary()->add_value();
  entry->set_tag(tag);
  entry->set_simple_value(static_cast<float>(value));
  record(event.SerializeAsString());
}

void EventWriter::record(const std::string& bytes) {
  std::string length;
  append_little_endian(length, static_cast<std::uint64_t>(bytes.size()));
  std::string framed = length;
  append_little_endian(framed, masked_crc32c(length));
  framed += bytes;
  append_little_endian(framed, masked_crc32c(bytes));
  stream_.write(framed.data(), static_cast<std::streamsize>(framed.size()));
}

void EventWriter::flush() {
  stream_.flush();
  if (!stream_) fail<DataError>("[tensorboard] {} cannot be written", file_.string());
}

}  // namespace lockstep
