// Activations on the device: the formulas of kernels/activations.h, compiled for the device, with
// exponentials and the like from DeviceMath.
//
// Include this header instead of that one.
#pragma once

#include "lockstep/base/vectorized.h"

#pragma push_macro("LOCKSTEP_INLINE")
#undef LOCKSTEP_INLINE
#define LOCKSTEP_INLINE __device__ __forceinline__
#include "lockstep/kernels/activations.h"
#pragma pop_macro("LOCKSTEP_INLINE")

namespace lockstep {

// In f32. All stay finite for inputs of any size; quotients are accurate to two units in the last
// place.
struct DeviceMath {
  __device__ __forceinline__ static float logistic(float x) {
    return __fdividef(1.0f, 1.0f + expf(-x));
  }
  __device__ __forceinline__ static float tanh(float x) { return tanhf(x); }
  __device__ __forceinline__ static float log1p_exp_minus(float x) { return log1pf(expf(-x)); }
  __device__ __forceinline__ static float bell(float x) { return expf(x * x * -0.5f); }
  __device__ __forceinline__ static float normal_cumulative(float x) {
    return 0.5f * erfcf(x * -0.70710678118654752f);
  }
};

// The value as a function of one element.
template <class A>
struct ActivationValue {
  A activation;
  __device__ __forceinline__ float operator()(float x) const { return activation.value(x); }
};

// dy times the derivative, as a function of dy and of the output or the input.
template <class A>
struct ActivationSlope {
  A activation;
  __device__ __forceinline__ float operator()(float dy, float operand) const {
    return activation.grad(dy, operand);
  }
};

}  // namespace lockstep
