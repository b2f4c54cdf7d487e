#include "lockstep/explain/learning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace lockstep {
namespace {

using LearningJson = nlohmann::json;

LearningJson number_or_null(double value) {
  return std::isfinite(value) ? LearningJson(value) : LearningJson(nullptr);
}

double number_or(const LearningJson& json, double otherwise) {
  return json.is_null() ? otherwise : json.get<double>();
}

constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

LossPoint LearningCurve::Window::point() const {
  return {.step = last, .loss = finite > 0 ? sum / static_cast<double>(finite) : kNoLoss};
}

void LearningCurve::add_loss(std::int64_t step, double loss) {
  if (windows_.empty() || windows_.back().steps == length_) {
    if (windows_.size() == most_) {
      std::vector<Window> half;
      for (std::size_t i = 0; i + 1 < windows_.size(); i += 2) {
        const Window& a = windows_[i];
        const Window& b = windows_[i + 1];
        half.push_back({.last = b.last,
                        .steps = a.steps + b.steps,
                        .finite = a.finite + b.finite,
                        .sum = a.sum + b.sum});
      }
      if (windows_.size() % 2 == 1) half.push_back(windows_.back());
      windows_ = std::move(half);
      length_ *= 2;
    }
    if (windows_.empty() || windows_.back().steps >= length_) windows_.emplace_back();
  }
  Window& window = windows_.back();
  window.last = step;
  ++window.steps;
  if (!std::isfinite(loss)) return;
  ++window.finite;
  window.sum += loss;
}

void LearningCurve::add_noise(std::int64_t step, const NoiseScale& noise) {
  if (++noise_skipped_ < noise_every_) return;
  noise_skipped_ = 0;
  noises_.push_back({.step = step, .value = noise.value, .low = noise.low, .high = noise.high});
  if (noises_.size() < most_) return;
  std::vector<NoiseAt> half;
  for (std::size_t i = 1; i < noises_.size(); i += 2) half.push_back(noises_[i]);
  noises_ = std::move(half);
  noise_every_ *= 2;
}

void LearningCurve::go_back_to(std::int64_t step) {
  std::erase_if(windows_, [&](const Window& window) { return window.last >= step; });
  std::erase_if(noises_, [&](const NoiseAt& each) { return each.step >= step; });
}

std::vector<LossPoint> LearningCurve::losses() const {
  std::vector<LossPoint> points;
  for (const Window& window : windows_) points.push_back(window.point());
  return points;
}

void to_json(LearningJson& json, const Learning& learning) {
  json = {{"optimizer", learning.optimizer}, {"learning_rate", learning.learning_rate}};
  if (learning.noise) {
    const NoiseScale& noise = *learning.noise;
    json["noise"] = {{"value", number_or_null(noise.value)},
                     {"low", number_or_null(noise.low)},
                     {"high", number_or_null(noise.high)},
                     {"squared_gradient", number_or_null(noise.squared_gradient)},
                     {"trace", number_or_null(noise.trace)},
                     {"samples", noise.samples}};
  }
  json["losses"] = LearningJson::array();
  for (const LossPoint& point : learning.losses) {
    json["losses"].push_back({point.step, number_or_null(point.loss)});
  }
  json["noises"] = LearningJson::array();
  for (const NoiseAt& each : learning.noises) {
    json["noises"].push_back({each.step, number_or_null(each.value), number_or_null(each.low),
                              number_or_null(each.high)});
  }
}

void from_json(const LearningJson& json, Learning& learning) {
  learning = {};
  learning.optimizer = json.at("optimizer").get<std::string>();
  learning.learning_rate = json.at("learning_rate").get<double>();
  if (json.contains("noise")) {
    const LearningJson& noise = json["noise"];
    learning.noise = NoiseScale{.value = number_or(noise.at("value"), kUnlimited),
                                .low = number_or(noise.at("low"), kUnlimited),
                                .high = number_or(noise.at("high"), kUnlimited),
                                .squared_gradient = number_or(noise.at("squared_gradient"), 0),
                                .trace = number_or(noise.at("trace"), 0),
                                .samples = noise.at("samples").get<std::int64_t>()};
  }
  for (const LearningJson& point : json.at("losses")) {
    learning.losses.push_back(
        {.step = point.at(0).get<std::int64_t>(), .loss = number_or(point.at(1), kNoLoss)});
  }
  for (const LearningJson& each : json.at("noises")) {
    learning.noises.push_back({.step = each.at(0).get<std::int64_t>(),
                               .value = number_or(each.at(1), kUnlimited),
                               .low = number_or(each.at(2), kUnlimited),
                               .high = number_or(each.at(3), kUnlimited)});
  }
}

}  // namespace lockstep
