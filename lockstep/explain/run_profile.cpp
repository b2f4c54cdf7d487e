#include "lockstep/explain/run_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;
constexpr const char* kFormat = "lockstep profile";
constexpr int kVersion = 1;

// Reads and writes: one list of fields for both directions.
struct Writer {
  Json& json;
  template <class T>
  void operator()(const char* name, const T& value) const {
    json[name] = value;
  }
};
struct Reader {
  const Json& json;
  template <class T>
  void operator()(const char* name, T& value) const {
    value = json.at(name).get<T>();
  }
};

template <class V, class T>
void fields(const V& visit, T& time) requires std::same_as<std::remove_const_t<T>, TimeParts> {
  visit("compute", time.compute);
  visit("communication", time.communication);
  visit("input", time.input);
  visit("wait", time.wait);
  visit("host", time.host);
  visit("start", time.start);
  visit("validation", time.validation);
  visit("checkpoint", time.checkpoint);
}

template <class V, class T>
void fields(const V& visit,
            T& replica) requires std::same_as<std::remove_const_t<T>, ReplicaProfile> {
  visit("device", replica.device);
  visit("worker", replica.worker);
  visit("samples", replica.samples);
  visit("time", replica.time);
}

template <class V, class T>
void fields(const V& visit, T& window) requires std::same_as<std::remove_const_t<T>, StepWindow> {
  visit("first", window.first);
  visit("steps", window.steps);
  visit("step_s", window.step_s);
  visit("compute_s", window.compute_s);
  visit("input_s", window.input_s);
  visit("wait_s", window.wait_s);
  visit("samples", window.samples);
}

template <class V, class T>
void fields(const V& visit, T& track) requires std::same_as<std::remove_const_t<T>, ProfiledTrack> {
  visit("name", track.name);
  visit("worker", track.worker);
  visit("clock_error_s", track.clock_error_s);
  visit("spans", track.spans);
}

template <class V, class T>
void fields(const V& visit, T& example) requires std::same_as<std::remove_const_t<T>, ExampleStep> {
  visit("step", example.step);
  visit("seconds", example.seconds);
  visit("slow", example.slow);
  visit("tracks", example.tracks);
}

template <class V, class T>
void fields(const V& visit,
            T& collective) requires std::same_as<std::remove_const_t<T>, CollectiveProfile> {
  visit("name", collective.name);
  visit("bytes", collective.bytes);
  visit("seconds", collective.seconds);
  visit("exposed_s", collective.exposed_s);
}

template <class V, class T>
void fields(const V& visit,
            T& instruction) requires std::same_as<std::remove_const_t<T>, PlannedInstruction> {
  visit("name", instruction.name);
  visit("after", instruction.after);
}

template <class V, class T>
void fields(const V& visit, T& link) requires std::same_as<std::remove_const_t<T>, LinkFit> {
  visit("latency_s", link.latency_s);
  visit("s_per_byte", link.s_per_byte);
}

template <class V, class T>
void fields(const V& visit,
            T& stage) requires std::same_as<std::remove_const_t<T>, InputStageProfile> {
  visit("name", stage.name);
  visit("depth", stage.depth);
  visit("busy_s", stage.busy_s);
  visit("wait_s", stage.wait_s);
  visit("threads", stage.threads);
}

template <class V, class T>
void fields(const V& visit,
            T& recovery) requires std::same_as<std::remove_const_t<T>, RecoveryProfile> {
  visit("cause", recovery.cause);
  visit("step", recovery.step);
  visit("lost_steps", recovery.lost_steps);
  visit("seconds", recovery.seconds);
}

template <class V, class T>
void fields(const V& visit, T& predicted) requires std::same_as<std::remove_const_t<T>, Predicted> {
  visit("step_ms", predicted.step_ms);
  visit("low_ms", predicted.low_ms);
  visit("high_ms", predicted.high_ms);
  visit("measured_ms", predicted.measured_ms);
}

template <class V, class T>
void fields(const V& visit, T& profile) requires std::same_as<std::remove_const_t<T>, RunProfile> {
  visit("model", profile.model);
  visit("precision", profile.precision);
  visit("hardware", profile.hardware);
  visit("transport", profile.transport);
  visit("replicas", profile.replicas);
  visit("workers", profile.workers);
  visit("global_batch", profile.global_batch);
  visit("balanced", profile.balanced);
  visit("steps", profile.steps);
  visit("samples", profile.samples);
  visit("seconds", profile.seconds);
  visit("callback_s", profile.callback_s);
  visit("planned_s", profile.planned_s);
  visit("step_s", profile.step_s);
  visit("step_p99_s", profile.step_p99_s);
  visit("peak_bytes", profile.peak_bytes);
  visit("by_replica", profile.by_replica);
  visit("windows", profile.windows);
  visit("examples", profile.examples);
  visit("collectives", profile.collectives);
  visit("plan", profile.plan);
  visit("link", profile.link);
  visit("stages", profile.stages);
  visit("input_limit", profile.input_limit);
  visit("input_advice", profile.input_advice);
  visit("recoveries", profile.recoveries);
}

}  // namespace

// nlohmann's hooks: it finds them by the type's namespace.
template <class T>
requires requires(const T& value, Json& json) {
  fields(Writer{json}, value);
}
void to_json(Json& json, const T& value) {
  json = Json::object();
  fields(Writer{json}, value);
}
template <class T>
requires requires(T& value, const Json& json) {
  fields(Reader{json}, value);
}
void from_json(const Json& json, T& value) {
  fields(Reader{json}, value);
}

// A span is a row of numbers and its name: there are thousands.
void to_json(Json& json, const ProfiledSpan& span) {
  json = Json::array({span.name, static_cast<int>(span.kind), span.begin_s, span.end_s});
}
void from_json(const Json& json, ProfiledSpan& span) {
  const int kind = json.at(1).get<int>();
  if (kind < 0 || kind > static_cast<int>(SpanKind::Host)) {
    fail<DataError>("a span of the unknown kind {}", kind);
  }
  span = {.name = json.at(0).get<std::string>(),
          .kind = static_cast<SpanKind>(kind),
          .begin_s = json.at(2).get<double>(),
          .end_s = json.at(3).get<double>()};
}

// Rows, as there may be a thousand.
void to_json(Json& json, const StepMemory& memory) {
  json = {{"instructions", Json::array()}, {"peak", Json::array()}};
  for (const MemoryAt& at : memory.instructions) {
    json["instructions"].push_back({at.instruction, at.bytes});
  }
  for (const PeakPart& part : memory.peak) {
    json["peak"].push_back({part.layer, static_cast<int>(part.kind), part.bytes});
  }
  if (memory.capacity) json["capacity"] = *memory.capacity;
}
void from_json(const Json& json, StepMemory& memory) {
  memory = {};
  for (const Json& row : json.at("instructions")) {
    memory.instructions.push_back({.instruction = row.at(0).get<std::string>(),
                                   .bytes = row.at(1).get<std::array<double, kMemoryKinds>>()});
  }
  for (const Json& row : json.at("peak")) {
    const auto kind = row.at(1).get<std::uint64_t>();
    if (kind >= kMemoryKinds) fail<DataError>("memory of the unknown kind {}", kind);
    memory.peak.push_back({.layer = row.at(0).get<std::string>(),
                           .bytes = row.at(2).get<double>(),
                           .kind = static_cast<MemoryKind>(kind)});
  }
  if (json.contains("capacity")) memory.capacity = json["capacity"].get<double>();
}

namespace {

void check(const RunProfile& profile) {
  const auto finite = [](double value) { return std::isfinite(value) && value >= 0; };
  if (profile.replicas < 1 || profile.workers < 1 || profile.steps < 0 || profile.samples < 0 ||
      !finite(profile.seconds)) {
    fail<DataError>("{} replicas, {} workers, {} steps and {} s cannot be", profile.replicas,
                    profile.workers, profile.steps, profile.seconds);
  }
  const auto replicas = static_cast<std::size_t>(profile.replicas);
  if (profile.by_replica.size() != replicas) {
    fail<DataError>("the times of {} replicas, of {}", profile.by_replica.size(), replicas);
  }
  for (const StepWindow& window : profile.windows) {
    if (window.compute_s.size() != window.wait_s.size() ||
        window.compute_s.size() != window.input_s.size() ||
        window.compute_s.size() != window.samples.size()) {
      fail<DataError>("the steps from {} on have times of {}, {} and {} replicas", window.first,
                      window.compute_s.size(), window.input_s.size(), window.wait_s.size());
    }
  }
}

}  // namespace

// Over a network, a small all-reduce takes one latency, and one of a mebibyte takes two, as any
// bucket does: what it took longer is not all bytes.
LinkFit link_fit(const LinkSpeed& measured, bool over_a_network) {
  constexpr double kProbed = 1 << 20;
  LinkFit link{.latency_s = measured.latency_s, .s_per_byte = 1 / measured.bytes_per_s};
  if (!over_a_network) return link;
  link.s_per_byte = std::max(link.s_per_byte - link.latency_s / kProbed, link.s_per_byte / 10);
  link.latency_s *= 2;
  return link;
}

bool is_over_a_network(const RunProfile& profile) {
  return profile.workers > 1 && profile.transport != "shared memory";
}

int replicas_per_host(const RunProfile& profile) {
  return is_over_a_network(profile) ? std::max(1, profile.replicas / profile.workers)
                                    : profile.replicas;
}

std::string to_json(const RunProfile& profile) {
  Json json = {{"format", kFormat}, {"format_version", kVersion}};
  fields(Writer{json}, profile);
  if (profile.predicted) json["predicted"] = *profile.predicted;
  json["input_seconds"] = profile.input_seconds;
  json["memory"] = profile.memory;
  json["learning"] = profile.learning;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RunProfile run_profile_from_json(const std::string& text, const std::string& what) {
  RunProfile profile;
  try {
    const Json json = Json::parse(text);
    if (!json.is_object() || json.value("format", "") != kFormat) {
      fail<DataError>("it is not the profile of a run");
    }
    const int version = json.at("format_version").get<int>();
    if (version != kVersion) {
      fail<DataError>("it has the version {}, and this program reads version {}", version,
                      kVersion);
    }
    fields(Reader{json}, profile);
    if (json.contains("predicted")) profile.predicted = json["predicted"].get<Predicted>();
    // Profiles of earlier versions do not have these.
    profile.input_seconds = json.value("input_seconds", 0.0);
    if (json.contains("memory")) profile.memory = json["memory"].get<StepMemory>();
    if (json.contains("learning")) profile.learning = json["learning"].get<Learning>();
    check(profile);
  } catch (const Json::exception& error) {
    fail<DataError>("{}: the profile is damaged: {}", what, error.what());
  } catch (const DataError& error) {
    fail<DataError>("{}: the profile cannot be used: {}", what, error.what());
  }
  return profile;
}

}  // namespace lockstep
