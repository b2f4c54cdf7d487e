// The sizes and options of a convolution or of one of its gradients.
#pragma once

#include <cstdint>

#include "lockstep/base/dtype.h"

namespace lockstep {

enum class ConvWay { Forward, GradInput, GradFilter };

struct ConvProblem {
  ConvWay way = ConvWay::Forward;
  DType dtype = DType::F32;                    // of the image, the filter and the result
  DType filter_dtype = DType::F32;             // differs only for a gradient, which may be wider
  std::int64_t n = 0, h = 0, w = 0, c = 0;     // image (n, h, w, c)
  std::int64_t kh = 0, kw = 0, in = 0, o = 0;  // filter (kh, kw, in, o), in per group
  std::int64_t oh = 0, ow = 0;                 // result (n, oh, ow, o)
  std::int64_t groups = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;
  bool statistics = false;  // forward: also the per-channel sums of the result and of its squares
  bool outputs_first = false;  // the filter is stored as (o, kh, kw, in), not row-major

  std::int64_t image_elements() const { return n * h * w * c; }
  std::int64_t filter_elements() const { return kh * kw * in * o; }
  std::int64_t result_elements() const { return n * oh * ow * o; }
  // Floating-point operations.
  double operations() const {
    return 2.0 * static_cast<double>(result_elements()) * static_cast<double>(kh * kw * in);
  }
};

}  // namespace lockstep
