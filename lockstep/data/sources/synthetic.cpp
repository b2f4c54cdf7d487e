#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/random.h"
#include "lockstep/data/datasets.h"

namespace lockstep::datasets {
namespace {

// Box-Muller, four numbers from the four words of a Philox block, in float precision.
void fill_with_normals(std::span<float> values, PhiloxKey key) {
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const std::uint64_t counter = i / 4;
    const PhiloxBlock words = philox(key, {static_cast<std::uint32_t>(counter),
                                           static_cast<std::uint32_t>(counter >> 32), 0, 0});
    float normals[4];
    for (std::size_t pair = 0; pair < 4; pair += 2) {
      const float radius = std::sqrt(-2.0f * std::log(1.0f - to_unit_float(words[pair])));
      const float angle = 2.0f * std::numbers::pi_v<float> * to_unit_float(words[pair + 1]);
      normals[pair] = radius * std::cos(angle);
      normals[pair + 1] = radius * std::sin(angle);
    }
    std::copy_n(normals, std::min<std::size_t>(4, values.size() - i), values.begin() + i);
  }
}

}  // namespace

Dataset synthetic(SyntheticOptions options) {
  require(options.count >= 0 && options.classes > 0,
          "[synthetic] .count must be 0 or more and .classes at least 1, not {} and {}",
          options.count, options.classes);
  std::vector<std::int64_t> dims{options.count};
  dims.insert(dims.end(), options.sample.dims().begin(), options.sample.dims().end());
  Tensor samples(DType::F32, Shape(std::move(dims)));
  fill_with_normals(samples.values<float>(), make_key(options.seed, hash_name("samples")));
  Tensor labels(DType::I32, {options.count});
  RandomSequence random(options.seed, hash_name("labels"));
  for (std::int32_t& label : labels.values<std::int32_t>()) {
    label = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(options.classes)));
  }
  return Dataset::from_tensor_slices({std::move(samples), std::move(labels)});
}

std::int64_t count_classes(const Dataset& dataset) {
  const std::vector<ElementSpec> spec = dataset.element_spec();
  require(spec.size() > 1 && spec[1].dtype == DType::I32,
          "[count_classes] the second component of an element must be an i32 label");
  require(dataset.cardinality().has_value(),
          "[count_classes] the data set must have a known number of elements");
  std::int64_t classes = 0;
  const Dataset chunks = spec[1].shape.rank() == 0 ? dataset.batch(1024) : dataset;
  const auto iterator = chunks.iterator();
  while (const std::optional<Element> element = iterator->next()) {
    for (std::int32_t label : (*element)[1].values<std::int32_t>()) {
      classes = std::max<std::int64_t>(classes, std::int64_t{label} + 1);
    }
  }
  return classes;
}

}  // namespace lockstep::datasets
