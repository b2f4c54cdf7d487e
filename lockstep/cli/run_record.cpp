#include "lockstep/cli/run_record.h"

#include <fmt/chrono.h>
#include <oneapi/tbb/version.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/cli/flags.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/kernels/onednn/version.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFormat = "lockstep run";
constexpr int kVersion = 1;
constexpr int kDeepest = 16;  // nesting depth
constexpr std::uintmax_t kLargest = std::uintmax_t{64} << 20;

std::string now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

Json command_line() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  Json words = Json::array();
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(word);
  return words;
}

// Null for a library that this build does not have.
Json version_or_null(const std::string& version) {
  return version.empty() ? Json(nullptr) : Json(version);
}

Json program() {
  Json json = {
      {"name", "lockstep"},
      {"version", LOCKSTEP_VERSION},
      {"compiler", __VERSION__},
      {"libraries",
       {{"oneDNN", version_or_null(onednn_version())},
        {"CUDA", version_or_null(cuda_version())},
        {"fmt", FMT_VERSION},
        {"oneTBB", TBB_VERSION_STRING},
        {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                      NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
        {"CLI11", cli11_version()}}}};
  return json;
}

// Replaces bytes that are not UTF-8: paths may hold any.
std::string record_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Json new_record() {
  return {{"format", kFormat},
          {"format_version", kVersion},
          {"program", program()},
          {"started", {{"time", now()}, {"command_line", command_line()}}},
          {"resumed", Json::array()}};
}

void note_resumed(Json& record, const Json& options) {
  Json changed = Json::object();
  for (const auto& [key, value] : options.items()) {
    const auto before = record["options"].find(key);
    if (before == record["options"].end() || *before != value) changed[key] = value;
  }
  record["resumed"].push_back({{"time", now()},
                               {"command_line", command_line()},
                               {"version", LOCKSTEP_VERSION},
                               {"changed", std::move(changed)}});
  record["options"] = options;
}

std::optional<Json> read_record(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  const std::string rest = "; restore it, or move it away and resume with every flag of the run";
  const auto size = fs::file_size(file, error);
  if (error || size > kLargest)
    fail<DataError>("{}: this is not a run's record{}", file.string(), rest);
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream) fail<DataError>("{}: cannot be read", file.string());
  Json record;
  try {
    record = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kDeepest)
        fail<DataError>("{}: this is not a run's record{}", file.string(), rest);
      return true;
    });
  } catch (const nlohmann::json::exception&) {
    fail<DataError>("{}: the run's record is incomplete or damaged{}", file.string(), rest);
  }
  const auto is = [&](const char* key, const auto& value) {
    const auto found = record.find(key);
    return found != record.end() && *found == value;
  };
  if (!record.is_object() || !is("format", kFormat)) {
    fail<DataError>("{}: this is not a run's record{}", file.string(), rest);
  }
  const Json& version = record_part(record, "format_version", file);
  if (!version.is_number_integer() || version.get<std::int64_t>() != kVersion) {
    fail<DataError>("{}: it has format version {}, but this program reads {}: use a newer one",
                    file.string(), version.dump(), kVersion);
  }
  for (const char* part : {"options", "data", "state"}) {
    if (!record_part(record, part, file).is_object()) {
      fail<DataError>("{}: {} is not an object{}", file.string(), part, rest);
    }
  }
  if (!record_part(record, "resumed", file).is_array()) {
    fail<DataError>("{}: resumed is not a list{}", file.string(), rest);
  }
  return record;
}

const Json& record_part(const Json& record, const char* part, const fs::path& file) {
  const auto found = record.find(part);
  if (found == record.end()) fail<DataError>("{}: the record lacks {}", file.string(), part);
  return *found;
}

void RunRecorder::begin() {
  begun_ = true;
  Json& state = record_["state"];
  if (!state.is_object()) state = {{"status", ""}, {"epochs_done", 0}, {"steps", 0}};
  state["status"] = "running";
  state.erase("why");
  write();
}

void RunRecorder::epoch_done(std::int64_t epoch, std::int64_t step, const Logs& logs) {
  Json& state = record_["state"];
  state["epochs_done"] = epoch + 1;
  state["steps"] = step;
  const char* monitor = logs.find("val_loss") ? "val_loss" : "loss";
  const std::optional<double> value = logs.find(monitor);
  const Json best = state.value("best", Json::object());
  const auto part = [&](const char* key) {
    return best.is_object() ? best.value(key, Json()) : Json();
  };
  const Json before = part("value");
  const bool comparable = part("monitor") == monitor && before.is_number();
  if (value && std::isfinite(*value) && !(comparable && before.get<double>() <= *value)) {
    state["best"] = {{"monitor", monitor}, {"epoch", epoch}, {"value", *value}};
  }
  write();
}

void RunRecorder::end(const std::string& status, const std::string& why) {
  if (!begun_) return;
  Json& state = record_["state"];
  state["status"] = status;
  if (!why.empty()) state["why"] = why;
  write();
}

void RunRecorder::write() {
  record_["state"]["updated"] = now();
  const std::string text = record_text(record_);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  write_file(file_, std::span(&bytes, 1));
}

}  // namespace lockstep::cli
