#include "lockstep/cli/adjustable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/cli/scale_source.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words_of(const Json& record) {
  const Json line = record.value("started", Json::object()).value("command_line", Json::array());
  std::vector<std::string> words;
  for (const Json& word : line) {
    if (word.is_string()) words.push_back(word.get<std::string>());
  }
  return words;
}

void drop(std::vector<std::string>& words, const std::string& flag) {
  for (auto at = words.begin(); at != words.end();) {
    if (*at == flag) {
      at = words.erase(at);
      if (at != words.end() && !at->starts_with("--")) at = words.erase(at);
    } else {
      at = at->starts_with(flag + "=") ? words.erase(at) : at + 1;
    }
  }
}

std::string value_of(const std::vector<std::string>& words, const std::string& flag) {
  for (auto at = words.begin(); at != words.end(); ++at) {
    if (at->starts_with(flag + "=")) return at->substr(flag.size() + 1);
    if (*at == flag && at + 1 != words.end()) return *(at + 1);
  }
  return "";
}

// One that a shell takes as it is.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

Json option_of(const Json& record, const char* key) {
  return record.value("options", Json::object()).value(key, Json());
}

std::optional<MeasuredStep> kept_step(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  return measured_step_from_json(text, file.string());
}

void keep_step(const fs::path& file, const MeasuredStep& step) {
  const std::string text = to_json(step);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  try {
    write_file(file, std::span(&bytes, 1));
  } catch (const DataError&) {
    // A folder that cannot be written: it is measured again the next time.
  }
}

// The step of the run with another precision; none if it cannot be measured.
std::optional<MeasuredStep> other_step(const RunProfile& profile, const fs::path& run,
                                       const std::string& precision, bool tf32, bool measure) {
  constexpr double kSeconds = 2;
  const fs::path file = run / fmt::format("measured.{}.json", tf32 ? "tf32" : precision);
  if (std::optional<MeasuredStep> kept = kept_step(file)) return kept;
  if (!measure) return std::nullopt;
  ScaleSourceOptions options;
  options.run = run.string();
  options.precision = precision;
  options.tf32 = tf32;
  options.most = replicas_per_host(profile);
  options.topology = Topology{.per_host = options.most};
  options.seconds = kSeconds;
  try {
    const ScaleSource source = scale_source(options);
    if (source.step.hardware != profile.hardware) return std::nullopt;
    keep_step(file, source.step);
    return source.step;
  } catch (const Error&) {
    return std::nullopt;  // such as too little memory: then there is no such advice
  }
}

}  // namespace

std::string command_with(const Json& record, const Adjustable::Flags& flags) {
  std::vector<std::string> words = words_of(record);
  if (words.size() < 2) return "";
  words.front() = "lockstep";
  drop(words, "--run-dir");
  for (const auto& [flag, value] : flags) {
    if (flag == "--batch-per-replica" && !value.empty()) {
      drop(words, "--global-batch");
      drop(words, "--batch");
    }
    if (flag == "--replicas" && !value.empty()) drop(words, "--devices");
    drop(words, flag);
    if (value.empty()) continue;
    words.push_back(flag);
    words.push_back(value);
  }
  for (std::string& word : words) word = shell_word(word);
  return fmt::format("{}", fmt::join(words, " "));
}

Adjustable adjustable_of(const RunProfile& profile, const Json& record, const fs::path& run,
                         bool measure) {
  Adjustable adjustable;
  adjustable.balanced = profile.balanced;
  adjustable.input_threads = static_cast<int>(available_cores().size());
  const std::vector<Gpu> gpus = find_gpus().gpus;
  const bool on_gpu = !gpus.empty() && profile.hardware == gpus.front().model;
  adjustable.memory_bytes =
      static_cast<double>(on_gpu ? gpus.front().memory_bytes : machine_memory());
  if (on_gpu) {
    adjustable.devices = static_cast<int>(gpus.size());
  } else {
    adjustable.memory_bytes /= profile.replicas;  // replicas on CPUs share it
  }
  // A batch up to the upper limit of the noise scale may still pay.
  if (profile.learning.noise && std::isfinite(profile.learning.noise->high)) {
    adjustable.useful_batch = profile.learning.noise->high;
  }
  const Json gradients = option_of(record, "gradient_dtype");
  adjustable.short_words = gradients.is_string() && gradients != "float32";
  adjustable.command = [record](const Adjustable::Flags& flags) {
    return command_with(record, flags);
  };
  adjustable.value = [words = words_of(record)](const std::string& flag) {
    return value_of(words, flag);
  };
  // CPUs compute faster with 16-bit numbers only where they have matrix units.
  if (!on_gpu || profile.precision != "float32") return adjustable;
  if (option_of(record, "no_tf32") == true) {
    if (auto step = other_step(profile, run, "float32", true, measure)) {
      adjustable.precisions.push_back({"TF32 products", std::move(*step), {{"--no-tf32", ""}}});
    }
  }
  if (auto step = other_step(profile, run, "mixed_bfloat16", false, measure)) {
    adjustable.precisions.push_back(
        {"mixed_bfloat16", std::move(*step), {{"--precision", "mixed_bfloat16"}}});
  }
  return adjustable;
}

}  // namespace lockstep::cli
