// Initialisers: the initial values of variables. Each element depends only on the seed and on its
// position.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Fills a tensor (f32 or f64): one of those below, its name in Keras ("he_normal"), or a
// user-defined function. Layers mix the variable's name into the model's seed before they pass it
// on, so that variables start with different numbers.
class Initializer {
 public:
  Initializer() = default;                                           // none
  Initializer(const char* name) : Initializer(std::string(name)) {}  // NOLINT: a name is one
  Initializer(const std::string& name);                              // NOLINT
  template <class F>
  requires std::is_invocable_v<F&, Tensor&, std::uint64_t> Initializer(F fill)
      : fill_(std::move(fill)) {}  // NOLINT: a function is one

  explicit operator bool() const { return static_cast<bool>(fill_); }
  void operator()(Tensor& target, std::uint64_t seed) const { fill_(target, seed); }

 private:
  std::function<void(Tensor& target, std::uint64_t seed)> fill_;
};

// How many inputs feed one output of a kernel, and how many outputs one input feeds. Kernels are
// (in, out) for a matrix, (window, in, out) for a convolution.
struct Fans {
  double in = 1;
  double out = 1;
};
Fans fans_of(const Shape& kernel);

enum class FanMode { In, Out, Average };
enum class Distribution { Uniform, Normal, TruncatedNormal };

// Mean 0, variance scale / fan. The truncated normal, cut off at two standard deviations, has that
// variance after the cut, as in Keras.
struct VarianceScalingOptions {
  double scale = 1.0;
  FanMode mode = FanMode::In;
  Distribution distribution = Distribution::TruncatedNormal;
};
Initializer VarianceScaling(VarianceScalingOptions options = {});

Initializer GlorotUniform();
Initializer GlorotNormal();
Initializer HeUniform();
Initializer HeNormal();
Initializer LecunUniform();
Initializer LecunNormal();

struct RandomNormalOptions {
  double mean = 0.0;
  double stddev = 0.05;
};
struct RandomUniformOptions {
  double minval = -0.05;
  double maxval = 0.05;
};
Initializer RandomNormal(RandomNormalOptions options = {});
Initializer TruncatedNormal(RandomNormalOptions options = {});  // within two deviations
Initializer RandomUniform(RandomUniformOptions options = {});

Initializer Zeros();
Initializer Ones();
Initializer Constant(double value);

}  // namespace lockstep
