#include "lockstep/train/event_writer.h"

#include <chrono>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/tfrecord.h"
#include "lockstep/train/event.pb.h"

namespace lockstep {
namespace {

double wall_time() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

// events.out.tfevents.<seconds>.lockstep, with a number appended if that file already exists.
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

EventWriter::EventWriter(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail<DataError>("[tensorboard] the folder {} cannot be created: {}", folder.string(),
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
  std::string framed;
  append_tfrecord(framed, bytes);
  stream_.write(framed.data(), static_cast<std::streamsize>(framed.size()));
}

void EventWriter::close() {
  stream_.close();
  if (!stream_) fail<DataError>("[tensorboard] {} cannot be written", file_.string());
}

void EventWriter::flush() {
  stream_.flush();
  if (!stream_) fail<DataError>("[tensorboard] {} cannot be written", file_.string());
}

}  // namespace lockstep
