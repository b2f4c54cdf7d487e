#include "lockstep/cli/progress_file.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kProgressFormat = "lockstep progress";
constexpr int kProgressVersion = 1;

// JSON has no numbers that are not finite.
Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}
double finite_or(const Json& json, double otherwise) {
  return json.is_null() ? otherwise : json.get<double>();
}
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

double* part_of(Attribution& attribution, const std::string& name) {
  const std::pair<const char*, double*> parts[] = {{"compute", &attribution.compute},
                                                   {"communication", &attribution.communication},
                                                   {"input", &attribution.input},
                                                   {"wait", &attribution.wait},
                                                   {"host", &attribution.host},
                                                   {"start", &attribution.start},
                                                   {"validation", &attribution.validation},
                                                   {"checkpoint", &attribution.checkpoint}};
  for (const auto& [known, value] : parts) {
    if (name == known) return value;
  }
  fail<DataError>("the time of an unknown part, '{}'", name);
}

RunProgress parsed_progress(const Json& json) {
  RunProgress progress;
  progress.step = json.at("step").get<std::int64_t>();
  progress.epoch = json.at("epoch").get<std::int64_t>();
  progress.epochs = json.at("epochs").get<std::int64_t>();
  progress.epoch_step = json.at("epoch_step").get<std::int64_t>();
  if (!json.at("steps_per_epoch").is_null()) {
    progress.steps_per_epoch = json["steps_per_epoch"].get<std::int64_t>();
  }
  progress.steps = json.at("steps").get<std::int64_t>();
  progress.samples = json.at("samples").get<std::int64_t>();
  progress.seconds = json.at("seconds").get<double>();
  if (json.contains("loss")) progress.loss = finite_or(json["loss"], kNotANumber);
  progress.step_s = json.at("step_s").get<double>();
  progress.samples_per_s = json.at("samples_per_s").get<double>();
  for (const auto& [name, value] : json.at("logs").items()) {
    progress.logs.set(name, finite_or(value, kNotANumber));
  }
  for (const auto& [name, value] : json.at("attribution").items()) {
    *part_of(progress.attribution, name) = value.get<double>();
  }
  progress.devices = json.at("devices").get<std::vector<std::string>>();
  progress.workers = json.at("workers").get<int>();
  progress.memory_bytes = json.at("memory_bytes").get<std::size_t>();
  progress.batch = json.at("batch").get<std::int64_t>();
  if (json.contains("noise_scale")) {
    const Json& noise = json["noise_scale"];
    progress.noise = NoiseScale{.value = finite_or(noise.at("value"), kUnbounded),
                                .low = finite_or(noise.at("low"), kUnbounded),
                                .high = finite_or(noise.at("high"), kUnbounded)};
  }
  progress.slow = json.at("slow").get<std::string>();
  progress.failures = json.at("failures").get<std::int64_t>();
  progress.warnings = json.at("warnings").get<std::int64_t>();
  progress.last_warning = json.at("last_warning").get<std::string>();
  for (const Json& point : json.at("losses")) {
    progress.losses.push_back(
        {.step = point.at(0).get<std::int64_t>(), .loss = finite_or(point.at(1), kNotANumber)});
  }
  progress.ended = json.at("ended").get<bool>();
  if (progress.step < 0 || progress.epoch < 0 || progress.epoch_step < 0 ||
      !std::isfinite(progress.seconds) || progress.workers < 1) {
    fail<DataError>("step {}, epoch {} and {} workers cannot be", progress.step, progress.epoch,
                    progress.workers);
  }
  return progress;
}

}  // namespace

Json progress_json(const ProgressFile& file) {
  const RunProgress& progress = file.progress;
  Json json = {{"format", kProgressFormat},
               {"format_version", kProgressVersion},
               {"model", file.model},
               {"host", file.host},
               {"step", progress.step},
               {"epoch", progress.epoch},
               {"epochs", progress.epochs},
               {"epoch_step", progress.epoch_step},
               {"steps_per_epoch",
                progress.steps_per_epoch ? Json(*progress.steps_per_epoch) : Json(nullptr)},
               {"steps", progress.steps},
               {"samples", progress.samples},
               {"seconds", progress.seconds}};
  if (progress.loss) json["loss"] = finite_or_null(*progress.loss);
  json["step_s"] = progress.step_s;
  json["samples_per_s"] = progress.samples_per_s;
  json["logs"] = Json::object();
  for (const auto& [name, value] : progress.logs.items()) {
    json["logs"][name] = finite_or_null(value);
  }
  json["attribution"] = Json::object();
  for (const auto& [name, share] : parts_of(progress.attribution)) {
    json["attribution"][name] = share;
  }
  json["devices"] = progress.devices;
  json["workers"] = progress.workers;
  json["memory_bytes"] = progress.memory_bytes;
  json["batch"] = progress.batch;
  if (progress.noise) {
    json["noise_scale"] = {{"value", finite_or_null(progress.noise->value)},
                           {"low", finite_or_null(progress.noise->low)},
                           {"high", finite_or_null(progress.noise->high)}};
  }
  json["slow"] = progress.slow;
  json["failures"] = progress.failures;
  json["warnings"] = progress.warnings;
  json["last_warning"] = progress.last_warning;
  json["losses"] = Json::array();
  for (const LossPoint& point : progress.losses) {
    json["losses"].push_back({point.step, finite_or_null(point.loss)});
  }
  json["ended"] = progress.ended;
  return json;
}

ProgressFile progress_from_json(const std::string& text, const std::string& where) {
  try {
    const Json json = Json::parse(text);
    if (!json.is_object() || json.value("format", "") != kProgressFormat) {
      fail<DataError>("it is not the progress of a run");
    }
    const int version = json.at("format_version").get<int>();
    if (version != kProgressVersion) {
      fail<DataError>("it has the version {}, and this program reads version {}", version,
                      kProgressVersion);
    }
    return {.progress = parsed_progress(json),
            .model = json.at("model").get<std::string>(),
            .host = json.at("host").get<std::string>()};
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>("{}: the progress is damaged: {}", where, error.what());
  } catch (const DataError& error) {
    fail<DataError>("{}: the progress cannot be used: {}", where, error.what());
  }
}

void write_progress(const fs::path& run, const ProgressFile& file) {
  const std::string text =
      progress_json(file).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  write_file(run / kProgressFile, std::span(&bytes, 1));
}

std::optional<ProgressFile> read_progress(const fs::path& run) {
  constexpr std::uintmax_t kLargest = 10'000'000;
  const fs::path file = run / kProgressFile;
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  const auto size = fs::file_size(file, error);
  if (error || size > kLargest) {
    fail<DataError>("{}: it is not the progress of a run", file.string());
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream) fail<DataError>("{}: cannot be read", file.string());
  return progress_from_json(text, file.string());
}

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace lockstep::cli
