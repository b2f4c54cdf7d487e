// Synthetic data for the examples that need no files.
#pragma once

#include <lockstep/lockstep.h>

// Samples and their class numbers.
struct Points {
  lockstep::Tensor x, y;
};

// Points around the corners of a cube, in ten classes: f32 (count, 20).
inline Points make_points(std::int64_t count) {
  lockstep::RandomSequence random(1, 1);
  Points points{lockstep::Tensor(lockstep::DType::F32, {count, 20}),
                lockstep::Tensor(lockstep::DType::I32, {count})};
  for (std::int64_t n = 0; n < count; ++n) {
    const auto label = static_cast<std::int32_t>(random.below(10));
    points.y.at<std::int32_t>(n) = label;
    for (std::int64_t f = 0; f < 20; ++f) {
      const double centre = f % 10 == label ? 2.0 : 0.0;
      points.x.at<float>(n, f) = static_cast<float>(centre + 0.5 * random.normal());
    }
  }
  return points;
}

// Random numbers from 0 to 1, f32 or f64 (count, 10). The label is 1 if the first two add up to
// more than 1.
inline Points make_pairs(std::int64_t count, lockstep::DType dtype) {
  lockstep::RandomSequence random(1, 1);
  Points points{lockstep::Tensor(lockstep::DType::F32, {count, 10}),
                lockstep::Tensor(lockstep::DType::I32, {count})};
  for (std::int64_t n = 0; n < count; ++n) {
    for (std::int64_t f = 0; f < 10; ++f) points.x.at<float>(n, f) = random.uniform();
    const float both = points.x.at<float>(n, 0) + points.x.at<float>(n, 1);
    points.y.at<std::int32_t>(n) = both > 1 ? 1 : 0;
  }
  points.x = points.x.cast(dtype);
  return points;
}
