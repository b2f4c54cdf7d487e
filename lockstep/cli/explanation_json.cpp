#include "lockstep/cli/explanation_json.h"

#include <cmath>

namespace lockstep::cli {

Json attribution_json(const Attribution& attribution) {
  Json json = Json::object();
  for (const auto& [name, share] : parts_of(attribution)) json[name] = share;
  return json;
}

Json explanation_json(const Explanation& explanation) {
  Json lost = Json::array();
  for (const LostTime& each : explanation.lost) {
    lost.push_back({{"cause", name_of(each.cause)},
                    {"seconds", each.seconds},
                    {"fraction", each.fraction},
                    {"where", each.where}});
  }
  Json advice = Json::array();
  for (const Advice& each : explanation.advice) {
    advice.push_back({{"change", each.change},
                      {"gain", each.gain},
                      {"speed_up", each.speed_up},
                      {"sure", each.sure},
                      {"command", each.command}});
  }
  Json json = {{"run", explanation.run},           {"replicas", explanation.replicas},
               {"seconds", explanation.seconds},   {"step_ms", explanation.step_ms},
               {"speed_up", explanation.speed_up}, {"possible", explanation.possible},
               {"lost", std::move(lost)},          {"advice", std::move(advice)}};
  if (explanation.predicted) {
    json["predicted"] = {{"step_ms", explanation.predicted->step_ms},
                         {"low_ms", explanation.predicted->low_ms},
                         {"high_ms", explanation.predicted->high_ms},
                         {"measured_ms", explanation.predicted->measured_ms}};
  }
  return json;
}

Json scaling_json(const ScalingCurve& curve) {
  Json points = Json::array();
  for (const ScalingPoint& point : curve.points) {
    points.push_back({{"replicas", point.replicas},
                      {"batch", point.batch},
                      {"step_ms", point.step_s * 1e3},
                      {"speed_up", point.speed_up}});
    if (point.measured) points.back()["measured"] = *point.measured;
  }
  return points;
}

Json outlook_json(const LossOutlook& outlook) {
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  Json points = Json::array();
  for (std::size_t i = 0; i < outlook.points.size(); ++i) {
    const TimeToLoss& point = outlook.points[i];
    points.push_back({{"devices", point.at.devices},
                      {"batch", point.at.batch},
                      {"faster", point.faster},
                      {"steps", point.steps},
                      {"sooner", point.sooner},
                      {"sooner_low", point.sooner_low},
                      {"sooner_high", point.sooner_high}});
    if (outlook.rates[i] > 0) points.back()["learning_rate"] = outlook.rates[i];
  }
  Json json = {{"noise_scale",
                {{"value", finite(outlook.noise.value)},
                 {"low", finite(outlook.noise.low)},
                 {"high", finite(outlook.noise.high)}}},
               {"points", std::move(points)}};
  if (outlook.largest) {
    json["largest"] = {{"devices", outlook.largest->devices}, {"batch", outlook.largest->batch}};
  }
  return json;
}

}  // namespace lockstep::cli
