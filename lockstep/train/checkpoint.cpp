#include "lockstep/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"

namespace lockstep {
namespace {

constexpr const char* kFirstVersion = "1";
constexpr std::string_view kPosition = "input/position";
constexpr std::string_view kValuesPrefix = "input/values/";
constexpr std::string_view kWorkerPrefix = "input/worker/";

std::optional<std::string> from_hex(const std::string& digits) {
  const auto value = [](char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
  };
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const int high = value(digits[i]);
    const int low = value(digits[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

std::string text_of(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

bool under(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix);
}

// Only an optimizer with a constant rate has this variable; one with a schedule does not.
bool is_learning_rate(std::string_view name) {
  if (!under(name, kOptimizerPrefix)) return false;
  name.remove_prefix(kOptimizerPrefix.size());
  const std::size_t slash = name.find('/');
  return slash != std::string_view::npos && name.substr(slash) == "/learning_rate";
}

std::string callback_tensor(std::size_t callback, std::size_t i) {
  return fmt::format("{}{}/{}", kCallbackPrefix, callback, i);
}

std::vector<CallbackState> read_callbacks(const TensorFile& contents,
                                          const std::filesystem::path& file) {
  const std::string text = text_of(contents.metadata, "callbacks");
  std::vector<CallbackState> states;
  try {
    require(!nests_too_deep(text), "[load] brackets are nested deeper than {}", kMaxJsonDepth);
    const auto list = nlohmann::json::parse(text);
    for (const auto& entry : list) {
      CallbackState state{.kind = entry.at("kind").get<std::string>(),
                          .text = entry.at("state").get<std::string>(),
                          .tensors = {}};
      const auto count = entry.at("tensors").get<std::size_t>();
      for (std::size_t i = 0; i < count; ++i) {
        state.tensors.push_back(contents.tensors.at(callback_tensor(states.size(), i)));
      }
      states.push_back(std::move(state));
    }
  } catch (const std::exception&) {  // from the JSON library, or a missing tensor
    fail<DataError>("[load] {}: the saved state of its callbacks is damaged", file.string());
  }
  return states;
}

// Tests the bits: in infinities and NaN all bits of the exponent are set.
template <class Bits>
bool no_exponent_of_ones(const Tensor& tensor, Bits ones) {
  bool finite = true;
  const std::byte* at = tensor.raw();
  for (std::size_t i = 0; i < tensor.bytes(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, at + i, sizeof(Bits));
    finite &= (bits & ones) != ones;
  }
  return finite;
}

bool all_finite(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::F64:
      return no_exponent_of_ones<std::uint64_t>(tensor, 0x7FF0'0000'0000'0000);
    case DType::F32:
      return no_exponent_of_ones<std::uint32_t>(tensor, 0x7F80'0000);
    case DType::BF16:
      return no_exponent_of_ones<std::uint16_t>(tensor, 0x7F80);
    case DType::F16:
      return no_exponent_of_ones<std::uint16_t>(tensor, 0x7C00);
    default:
      return true;
  }
}

Tensor bytes_tensor(const std::string& bytes) {
  const std::span<const std::uint8_t> values(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                             bytes.size());
  return Tensor::of(values, {std::ssize(bytes)});
}

std::string worker_position(std::size_t worker) {
  return fmt::format("{}{}", kWorkerPrefix, worker);
}

std::vector<std::string> read_worker_positions(const TensorFile& contents) {
  std::vector<std::string> positions;
  for (;;) {
    const auto found = contents.tensors.find(worker_position(positions.size()));
    if (found == contents.tensors.end()) return positions;
    positions.emplace_back(reinterpret_cast<const char*>(found->second.raw()),
                           found->second.bytes());
  }
}

void write_position(const IteratorState& position, TensorFile& contents) {
  if (position.empty()) return;
  contents.tensors[std::string(kPosition)] = bytes_tensor(position.bytes);
  for (const auto& [dtype, tensors] : position.values) {
    contents.rows[fmt::format("{}{}", kValuesPrefix, name_of(dtype))] = tensors;
  }
}

IteratorState read_position(const TensorFile& contents, const std::filesystem::path& file) {
  IteratorState position;
  const auto found = contents.tensors.find(std::string(kPosition));
  if (found == contents.tensors.end()) {  // version 1, or at the beginning of a pass
    std::optional<std::string> bytes = from_hex(text_of(contents.metadata, "position"));
    if (!bytes) {
      fail<DataError>("[load] {}: the iterator's position in its metadata is damaged",
                      file.string());
    }
    position.bytes = std::move(*bytes);
    return position;
  }
  const Tensor& bytes = found->second;
  position.bytes.assign(reinterpret_cast<const char*>(bytes.raw()), bytes.bytes());
  for (const auto& [name, tensor] : contents.tensors) {
    if (under(name, kValuesPrefix)) position.values[tensor.dtype()].push_back(tensor);
  }
  return position;
}

}  // namespace

void write_progress(const Progress& progress, TensorFile& contents) {
  Metadata& metadata = contents.metadata;
  metadata["epoch"] = std::to_string(progress.epoch);
  metadata["epoch_step"] = std::to_string(progress.epoch_step);
  metadata["epoch_samples"] = std::to_string(progress.epoch_samples);
  if (progress.trained) metadata["epoch_trained"] = "1";
  metadata["pass"] = std::to_string(progress.pass);
  write_position(progress.position, contents);
  for (std::size_t w = 0; w < progress.positions_of_workers.size(); ++w) {
    contents.tensors[worker_position(w)] = bytes_tensor(progress.positions_of_workers[w]);
  }
  if (progress.batch_size > 0) metadata["batch_size"] = std::to_string(progress.batch_size);
  if (progress.batches > 0) metadata["batches"] = std::to_string(progress.batches);
  auto list = nlohmann::json::array();
  for (std::size_t n = 0; n < progress.callbacks.size(); ++n) {
    const CallbackState& state = progress.callbacks[n];
    list.push_back(
        {{"kind", state.kind}, {"state", state.text}, {"tensors", state.tensors.size()}});
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      contents.tensors[callback_tensor(n, i)] = state.tensors[i];
    }
  }
  metadata["callbacks"] = list.dump();
}

std::optional<std::int64_t> read_integer(const Metadata& metadata, const std::string& key,
                                         const std::filesystem::path& file) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  std::int64_t value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    fail<DataError>("[load] {}: its metadata has {} = '{}', which is not a whole number",
                    file.string(), key, found->second);
  }
  return value;
}

std::optional<Progress> read_progress(const TensorFile& contents,
                                      const std::filesystem::path& file) {
  const Metadata& metadata = contents.metadata;
  const std::optional<std::int64_t> epoch = read_integer(metadata, "epoch", file);
  if (!epoch) return std::nullopt;
  Progress progress;
  progress.epoch = *epoch;
  progress.epoch_step = read_integer(metadata, "epoch_step", file).value_or(0);
  progress.epoch_samples = read_integer(metadata, "epoch_samples", file).value_or(0);
  progress.trained = read_integer(metadata, "epoch_trained", file).value_or(0) != 0;
  progress.pass = static_cast<std::uint64_t>(read_integer(metadata, "pass", file).value_or(0));
  progress.batch_size = read_integer(metadata, "batch_size", file).value_or(0);
  progress.batches = read_integer(metadata, "batches", file).value_or(0);
  progress.position = read_position(contents, file);
  progress.positions_of_workers = read_worker_positions(contents);
  progress.callbacks = read_callbacks(contents, file);
  return progress;
}

NamedVariables with_names(std::span<const VariableRef> variables, std::string_view prefix) {
  NamedVariables named;
  std::set<std::string> names;
  for (const VariableRef& variable : variables) {
    std::string name = std::string(prefix) + variable->name;
    require(names.insert(name).second,
            "[save] two variables are called '{}': give their layers different names",
            variable->name);
    named.emplace_back(std::move(name), variable);
  }
  return named;
}

void expect_fit(const TensorFile& contents, const NamedVariables& variables,
                const std::filesystem::path& file) {
  std::set<std::string_view> known;
  bool optimizer = false;
  bool metrics = false;
  for (const auto& [name, variable] : variables) {
    known.insert(name);
    optimizer = optimizer || under(name, kOptimizerPrefix);
    metrics = metrics || under(name, kMetricPrefix);
    const auto found = contents.tensors.find(name);
    const bool may_be_new = under(name, kLossScalePrefix) || is_learning_rate(name);
    if (found == contents.tensors.end() && may_be_new) continue;
    require(found != contents.tensors.end(),
            "[load] {}: it has no tensor '{}' ({} {} in the model): load the file into the model "
            "that it was saved from, or rename its tensors",
            file.string(), name, name_of(variable->dtype), variable->shape);
    const Tensor& tensor = found->second;
    require(tensor.dtype() == variable->dtype && tensor.shape() == variable->shape,
            "[load] {}: '{}' is {} {} in the file but {} {} in the model: build the model as it "
            "was when it was saved",
            file.string(), name, name_of(tensor.dtype()), tensor.shape(), name_of(variable->dtype),
            variable->shape);
  }
  for (const auto& [name, tensor] : contents.tensors) {
    if (!optimizer && under(name, kOptimizerPrefix)) continue;
    if (!metrics && under(name, kMetricPrefix)) continue;
    if (under(name, kCallbackPrefix) && !known.contains(name)) continue;
    if (under(name, kInputPrefix) && !known.contains(name)) continue;
    if (under(name, kLossScalePrefix) || is_learning_rate(name)) continue;
    if (under(name, kErrorFeedbackPrefix)) continue;
    require(
        known.contains(name),
        "[load] {}: the model has no variable for the tensor '{}' ({} {}): load the file into the "
        "model that it was saved from",
        file.string(), name, name_of(tensor.dtype()), tensor.shape());
  }
}

std::string first_not_finite(const TensorFile& contents) {
  for (const auto& [name, tensor] : contents.tensors) {
    const bool other = under(name, kMetricPrefix) || under(name, kLossScalePrefix) ||
                       under(name, kCallbackPrefix) || under(name, kInputPrefix);
    if (!other && is_floating(tensor.dtype()) && !all_finite(tensor)) return name;
  }
  return "";
}

std::filesystem::path not_finite_name(const std::filesystem::path& file) {
  std::filesystem::path name = file;
  return name.replace_extension(".nonfinite" + file.extension().string());
}

void expect_checkpoint(const TensorFile& contents, const std::filesystem::path& file) {
  if (text_of(contents.metadata, "format") != "lockstep" ||
      text_of(contents.metadata, "kind") != "checkpoint") {
    fail<DataError>(
        "[load] {} is a safetensors file but not a checkpoint of Lockstep: to read only weights, "
        "use load_weights",
        file.string());
  }
  const std::string version = text_of(contents.metadata, "format_version");
  if (version != kCheckpointVersion && version != kFirstVersion) {
    fail<DataError>(
        "[load] {} has the format version '{}'; this version of Lockstep reads {} and {}",
        file.string(), version, kFirstVersion, kCheckpointVersion);
  }
}

}  // namespace lockstep
