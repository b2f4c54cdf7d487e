// The update rules of graph/ops/update.h for one element, in f32. Each block computes once what is
// the same for all elements in a step.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/graph/attrs.h"
#include "lockstep/graph/ops/update.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

enum class CudaRule { Sgd, SgdMomentum, Adam, RmsProp, Adagrad, Lars, Lamb, Accumulate };

inline CudaRule cuda_rule_of(const Attrs& attrs) {
  const std::string& rule = attrs.text("rule");
  if (rule == "sgd") return attrs.integer("slots") > 0 ? CudaRule::SgdMomentum : CudaRule::Sgd;
  if (rule == "adam" || rule == "adamw") return CudaRule::Adam;
  if (rule == "rmsprop") return CudaRule::RmsProp;
  if (rule == "adagrad") return CudaRule::Adagrad;
  if (rule == "lars") return CudaRule::Lars;
  if (rule == kAccumulateRule) return CudaRule::Accumulate;
  ensure(rule == "lamb", "'{}' is not an update rule", rule);
  return CudaRule::Lamb;
}

// A node's attributes, read once.
struct RuleOptions {
  CudaRule rule;
  double momentum, weight_decay, epsilon, beta_1, beta_2, rho, trust, clip_value, clip_norm;
  bool nesterov;
  bool trusted;  // lars, lamb: the rate has the trust ratio

  explicit RuleOptions(const Attrs& attrs) : rule(cuda_rule_of(attrs)) {
    const auto real_or = [&](const char* name, double otherwise) {
      return attrs.has(name) ? attrs.real(name) : otherwise;
    };
    momentum = real_or("momentum", 0);
    weight_decay = real_or("weight_decay", 0);
    epsilon = real_or("epsilon", 1e-7);
    beta_1 = real_or("beta_1", 0.9);
    beta_2 = real_or("beta_2", 0.999);
    rho = real_or("rho", 0.9);
    trust = real_or("trust", 0.001);
    clip_value = real_or("clip_value", std::numeric_limits<double>::infinity());
    clip_norm = real_or("clip_norm", 0);
    nesterov = attrs.has("nesterov") && attrs.flag("nesterov");
    trusted = attrs.has(kTrusted);
  }

  // Whether weight decay is part of the rule and the rate depends on a parameter's norm.
  __host__ __device__ bool adapts() const {
    return rule == CudaRule::Lars || rule == CudaRule::Lamb;
  }
  // Whether each parameter's norm matters, so that adjacent parameters cannot be merged.
  bool by_parameter() const { return adapts() || clip_norm > 0; }
};

// What changes from step to step, in device memory.
struct StepInputs {
  const float* rate;
  const float* scale;
  const std::int64_t* step;
  const Fault* fault;  // null if faults are not checked

  // Whether to skip this step: the scale is 0, or a kernel has reported bad data.
  __device__ bool skips() const { return *scale == 0.0F || (fault != nullptr && fault->step != 0); }
};

struct RuleScalars {
  float rate;
  float scale;  // of the gradient, including clipping by norm
  float clip;   // limit for each element of the scaled gradient
  float keep;   // 1 - rate · decoupled weight decay
  float decay;  // lars, lamb: weight decay inside the rule
  float epsilon;
  float momentum;
  float beta_1;     // 1 - beta_1; rmsprop: rho
  float beta_2;     // 1 - beta_2; rmsprop: 1 - rho
  float step;       // adam: the rate with both bias corrections; lars, lamb: the local rate
  float correct_1;  // lamb: 1 / (1 - beta_1^t)
  float correct_2;  // lamb: 1 / (1 - beta_2^t)
  bool nesterov;
};

// Called by a whole warp: its first two threads compute one power each, the expensive part.
__device__ inline RuleScalars rule_scalars(const RuleOptions& o, const StepInputs& in) {
  const auto rate = static_cast<double>(*in.rate);
  const bool rms = o.rule == CudaRule::RmsProp;
  RuleScalars s;
  s.rate = *in.rate;
  s.scale = *in.scale;
  s.clip = static_cast<float>(o.clip_value);
  s.keep = static_cast<float>(o.adapts() ? 1.0 : 1.0 - rate * o.weight_decay);
  s.decay = static_cast<float>(o.weight_decay);
  s.epsilon = static_cast<float>(o.epsilon);
  s.momentum = static_cast<float>(o.momentum);
  s.beta_1 = static_cast<float>(rms ? o.rho : 1 - o.beta_1);
  s.beta_2 = static_cast<float>(rms ? 1 - o.rho : 1 - o.beta_2);
  s.nesterov = o.nesterov;
  s.step = s.correct_1 = s.correct_2 = 1;
  if (o.rule == CudaRule::Adam || o.rule == CudaRule::Lamb) {
    const auto t = static_cast<double>(*in.step);
    const double own = 1 - pow(threadIdx.x % 2 == 0 ? o.beta_1 : o.beta_2, t);
    const double correct_1 = __shfl_sync(0xFFFFFFFFU, own, 0);
    const double correct_2 = __shfl_sync(0xFFFFFFFFU, own, 1);
    s.step = static_cast<float>(rate * sqrt(correct_2) / correct_1);
    s.correct_1 = static_cast<float>(1 / correct_1);
    s.correct_2 = static_cast<float>(1 / correct_2);
  }
  return s;
}

// The gradient as a rule sees it: scaled and clipped. NaN propagates.
__device__ __forceinline__ float seen(float gradient, const RuleScalars& s) {
  const float g = gradient * s.scale;
  const float below = g > s.clip ? s.clip : g;
  return below < -s.clip ? -s.clip : below;
}

// a / b, and 0 if a is 0, whatever b is: with an epsilon of 0 an element whose gradients have all
// been 0 does not change.
__device__ __forceinline__ float quotient(float a, float b) {
  return a == 0.0F ? a : a / b;
}

// An element of a parameter, of its gradient and of its slots, which the rules update. The slots of
// rmsprop are the square, the momentum and the mean, in this order, whichever it uses.
struct UpdateElement {
  float p;
  float g;
  float slots[3];
};

__device__ __forceinline__ void update_moments(UpdateElement& e, const RuleScalars& s) {
  const float x = seen(e.g, s);
  e.slots[0] += (x - e.slots[0]) * s.beta_1;
  e.slots[1] += (x * x - e.slots[1]) * s.beta_2;
}

// LAMB (You et al., 2019): the direction, from updated moments.
__device__ __forceinline__ float lamb_direction(const UpdateElement& e, const RuleScalars& s) {
  return quotient(e.slots[0] * s.correct_1, sqrtf(e.slots[1] * s.correct_2) + s.epsilon) +
         s.decay * e.p;
}

__device__ __forceinline__ void update_rmsprop(UpdateElement& e, const RuleScalars& s,
                                               bool momentum, bool centered) {
  const float x = seen(e.g, s);
  const float square = s.beta_1 * e.slots[0] + s.beta_2 * x * x;
  e.slots[0] = square;
  float deviation = square;
  if (centered) {
    const float average = s.beta_1 * e.slots[2] + s.beta_2 * x;
    e.slots[2] = average;
    deviation -= average * average;
  }
  float move = quotient(s.rate * x, sqrtf(deviation + s.epsilon));
  if (momentum) {
    move += s.momentum * e.slots[1];
    e.slots[1] = move;
  }
  e.p = e.p * s.keep - move;
}

// All rules except rmsprop, whose slots depend on its options.
template <CudaRule kRule>
__device__ __forceinline__ void update_element(UpdateElement& e, const RuleScalars& s) {
  if constexpr (kRule == CudaRule::Sgd) {
    e.p = e.p * s.keep - s.rate * seen(e.g, s);
  } else if constexpr (kRule == CudaRule::SgdMomentum) {
    const float move = s.rate * seen(e.g, s);
    const float velocity = s.momentum * e.slots[0] - move;
    e.slots[0] = velocity;
    e.p = e.p * s.keep + (s.nesterov ? s.momentum * velocity - move : velocity);
  } else if constexpr (kRule == CudaRule::Adam) {
    update_moments(e, s);
    e.p = e.p * s.keep - quotient(s.step * e.slots[0], sqrtf(e.slots[1]) + s.epsilon);
  } else if constexpr (kRule == CudaRule::Adagrad) {
    const float x = seen(e.g, s);
    e.slots[0] += x * x;
    e.p = e.p * s.keep - quotient(s.rate * x, sqrtf(e.slots[0] + s.epsilon));
  } else if constexpr (kRule == CudaRule::Lars) {
    // LARS (You, Gitman, Ginsburg, 2017).
    e.slots[0] = s.momentum * e.slots[0] + s.step * (seen(e.g, s) + s.decay * e.p);
    e.p -= e.slots[0];
  } else if constexpr (kRule == CudaRule::Accumulate) {
    e.p = (s.rate == 0.0F ? 0.0F : e.p) + seen(e.g, s);
  } else {
    static_assert(kRule == CudaRule::Lamb);
    e.p -= s.step * lamb_direction(e, s);
  }
}

}  // namespace lockstep
