// Initialisers: whole tensors, whose distribution is compared with the peer's definition.
#include "conformance/driver/case.h"

namespace conformance {
namespace {

ls::Initializer make_initializer(const Case& c) {
  const std::string& name = c.what;
  if (name == "GlorotUniform") return ls::GlorotUniform();
  if (name == "GlorotNormal") return ls::GlorotNormal();
  if (name == "HeUniform") return ls::HeUniform();
  if (name == "HeNormal") return ls::HeNormal();
  if (name == "LecunUniform") return ls::LecunUniform();
  if (name == "LecunNormal") return ls::LecunNormal();
  if (name == "Zeros") return ls::Zeros();
  if (name == "Ones") return ls::Ones();
  if (name == "Constant") return ls::Constant(c.option("value", 0.0));
  ls::RandomNormalOptions normal;
  normal.mean = c.option("mean", normal.mean);
  normal.stddev = c.option("stddev", normal.stddev);
  if (name == "RandomNormal") return ls::RandomNormal(normal);
  if (name == "TruncatedNormal") return ls::TruncatedNormal(normal);
  if (name == "RandomUniform") {
    ls::RandomUniformOptions uniform;
    uniform.minval = c.option("minval", uniform.minval);
    uniform.maxval = c.option("maxval", uniform.maxval);
    return ls::RandomUniform(uniform);
  }
  if (name == "VarianceScaling") {
    ls::VarianceScalingOptions options;
    options.scale = c.option("scale", options.scale);
    const std::string mode = c.option<std::string>("mode", "fan_in");
    options.mode = mode == "fan_in"    ? ls::FanMode::In
                   : mode == "fan_out" ? ls::FanMode::Out
                                       : ls::FanMode::Average;
    const std::string distribution = c.option<std::string>("distribution", "truncated_normal");
    options.distribution = distribution == "uniform" ? ls::Distribution::Uniform
                           : distribution == "untruncated_normal"
                               ? ls::Distribution::Normal
                               : ls::Distribution::TruncatedNormal;
    return ls::VarianceScaling(options);
  }
  unknown(c);
}

}  // namespace

// Option: shape. Results: the tensor, and whether the same seed and another seed give the same one.
Tensors run_initializer(const Case& c) {
  const ls::Initializer initializer = make_initializer(c);
  const ls::Shape shape(c.options.at("shape").get<std::vector<std::int64_t>>());
  ls::Tensor first(ls::DType::F32, shape), again(ls::DType::F32, shape),
      other(ls::DType::F32, shape);
  initializer(first, 17);
  initializer(again, 17);
  initializer(other, 18);
  return {{"values", first},
          {"same_seed", ls::Tensor::scalar(std::int64_t{first.same_bits(again)})},
          {"other_seed", ls::Tensor::scalar(std::int64_t{first.same_bits(other)})}};
}

}  // namespace conformance
