#include "lockstep/cli/explained_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/cli/adjustable.h"
#include "lockstep/cli/run_profile_file.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/cli/scale_source.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/explain/advise.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

bool same_processor(const RunProfile& profile, const MeasuredStep& step) {
  return profile.hardware == step.hardware;
}

void keep_measured(const fs::path& run, const MeasuredStep& step) {
  const std::string text = to_json(step);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  try {
    write_file(run / kMeasuredStepFile, std::span(&bytes, 1));
  } catch (const DataError&) {
    // A folder that cannot be written is explained all the same; the next time it is measured
    // again.
  }
}

std::optional<MeasuredStep> recorded_step(const fs::path& run) {
  const fs::path file = run / kMeasuredStepFile;
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream) fail<DataError>("{}: cannot be read", file.string());
  return measured_step_from_json(text, file.string());
}

ScaleSourceOptions source_of(const RunProfile& profile, const fs::path& run, double seconds) {
  ScaleSourceOptions options;
  options.run = run.string();
  options.most = replicas_per_host(profile);
  options.counts = {profile.replicas};
  options.topology = Topology{.per_host = options.most};
  options.seconds = seconds;
  return options;
}

// What was to be expected of the run, and how far steps vary.
Predicted prediction(const RunProfile& profile, const MeasuredStep& step) {
  const SimulatedStep expected = simulate(step, scenario_of(profile, step));
  return {.step_ms = expected.step_s * 1e3,
          .low_ms = 0.9 * expected.step_s * 1e3,
          .high_ms = std::max(1.1 * expected.step_s, expected.p99_s) * 1e3};
}

std::vector<CriticalShare> critical_of(const RunProfile& profile) {
  const ExampleStep* typical = nullptr;
  for (const ExampleStep& example : profile.examples) {
    if (!example.slow) typical = &example;
  }
  if (typical == nullptr) return {};
  std::vector<CriticalShare> shares =
      critical_shares(*typical, critical_path(*typical, profile.plan, is_over_a_network(profile)));
  double whole = 0;
  for (const CriticalShare& share : shares) whole += share.seconds;
  for (CriticalShare& share : shares) share.seconds /= whole > 0 ? whole : 1;
  return shares;
}

}  // namespace

ExplainedRun explain_run(const fs::path& run, bool measure) {
  constexpr double kSeconds = 4;
  ExplainedRun result;
  result.profile = read_run_profile(run);
  RunProfile& profile = result.profile;
  result.alone = recorded_step(run);
  if (!result.alone && measure && profile.steps > 0) {
    try {
      ScaleSource source = scale_source(source_of(profile, run, kSeconds));
      if (same_processor(profile, source.step)) {
        keep_measured(run, source.step);
        result.alone = std::move(source.step);
      } else {
        result.why_not_alone = fmt::format("the run was on {}, and this is {}", profile.hardware,
                                           source.step.hardware);
      }
    } catch (const Error& error) {
      result.why_not_alone = error.what();
    }
  }
  if (result.alone && profile.replicas > 1 && !profile.predicted) {
    profile.predicted = prediction(profile, *result.alone);
  }
  result.explanation = explain(profile, result.alone ? &*result.alone : nullptr);
  result.explanation.run = run.string();
  result.critical = critical_of(profile);
  // A damaged record is an error even where nothing of it is needed.
  const std::optional<Json> record = read_record(run / kRecordFile);
  if (result.alone) {
    result.explanation.advice =
        advise(profile, *result.alone, result.explanation,
               adjustable_of(profile, record ? *record : Json::object(), run, measure));
    result.curve = scaling_curve(profile, *result.alone);
    result.outlook = loss_outlook(profile, result.curve);
  }
  return result;
}

std::optional<Explanation> hold_to_account(RunProfile& profile, const fs::path& run,
                                           double seconds) {
  const ScaleSource source = scale_source(source_of(profile, run, seconds));
  if (!same_processor(profile, source.step)) return std::nullopt;
  keep_measured(run, source.step);
  if (profile.replicas > 1) profile.predicted = prediction(profile, source.step);
  Explanation explanation = explain(profile, &source.step);
  explanation.run = run.string();
  const std::optional<Json> record = read_record(run / kRecordFile);
  explanation.advice =
      advise(profile, source.step, explanation,
             adjustable_of(profile, record ? *record : Json::object(), run, /*measure=*/false));
  return explanation;
}

}  // namespace lockstep::cli
