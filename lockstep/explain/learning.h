// Learning: how the loss and the gradient noise scale of a run went. LearningCurve records them in
// bounded memory, however many steps there are: neighbours are merged as they become many.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/explain/noise_scale.h"

namespace lockstep {

struct LossPoint {
  std::int64_t step = 0;  // the last of those that it stands for
  double loss = 0;        // their mean; not finite if none of them was
};

// The noise scale as it was known after a step, in samples. Limits may be infinite.
struct NoiseAt {
  std::int64_t step = 0;
  double value = 0;
  double low = 0;
  double high = 0;
};

struct Learning {
  std::string optimizer;
  double learning_rate = 0;  // after the last step; 0: not known
  std::optional<NoiseScale> noise = {};
  std::vector<LossPoint> losses = {};
  std::vector<NoiseAt> noises = {};
};

// As JSON, for the files that hold it: numbers that are not finite are null.
void to_json(nlohmann::json& json, const Learning& learning);
// nlohmann's exception if the JSON is something else.
void from_json(const nlohmann::json& json, Learning& learning);

class LearningCurve {
 public:
  explicit LearningCurve(std::size_t most = 512) : most_(most) {}

  void add_loss(std::int64_t step, double loss);
  void add_noise(std::int64_t step, const NoiseScale& noise);
  // Steps from this one on were lost with a failure, and come once more.
  void go_back_to(std::int64_t step);

  // The losses so far, those of an unfinished window too.
  std::vector<LossPoint> losses() const;
  const std::vector<NoiseAt>& noises() const { return noises_; }

 private:
  // Steps that are merged into a point.
  struct Window {
    std::int64_t last = 0;
    std::int64_t steps = 0;
    std::int64_t finite = 0;  // of their losses
    double sum = 0;           // of these
    LossPoint point() const;
  };

  std::size_t most_;
  std::int64_t length_ = 1;  // steps of a window
  std::vector<Window> windows_;
  std::vector<NoiseAt> noises_;
  std::int64_t noise_every_ = 1;  // one in so many estimates is kept
  std::int64_t noise_skipped_ = 0;
};

}  // namespace lockstep
