// tf.train.Example: a record that holds named lists of byte strings, floats or 64-bit integers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

enum class FeatureLength {
  Fixed,     // as many values as the shape has elements
  Variable,  // any number of rows of the shape: the tensor has shape (rows, shape…)
  Padded,    // at most as many rows as the shape has, padded with `pad`
};

// What to read from each record. u8 reads a byte string (for an encoded image: u8 and Variable);
// f32 and f64 read floats; i32, i64 and bool read integers.
struct FeatureSpec {
  std::string name = "";
  DType dtype = DType::F32;
  Shape shape = {};
  FeatureLength length = FeatureLength::Fixed;
  double pad = 0;
  // The value if a record lacks the feature: a tensor of this dtype and shape, or a scalar to fill
  // the shape with. If undefined, a missing Fixed feature is a DataError; others get no rows.
  Tensor missing = {};
};

// Turns records into tensors. It has no mutable state; several threads may use it at once.
class ExampleParser {
 public:
  // UsageError for invalid features: none, two with the same name, an unsupported dtype.
  explicit ExampleParser(std::vector<FeatureSpec> features);

  const std::vector<FeatureSpec>& features() const { return features_; }

  // One tensor per feature, in order. DataError says the file, the record and the feature, what was
  // expected and what was found.
  std::vector<Tensor> parse(std::string_view bytes, std::string_view file,
                            std::int64_t record) const;

 private:
  std::vector<FeatureSpec> features_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views of the names in features_
};

using FeatureValue = std::variant<std::string, std::vector<std::string>, std::vector<float>,
                                  std::vector<std::int64_t>>;

// The bytes of an Example with these features. Equal features give equal bytes.
std::string serialize_example(const std::map<std::string, FeatureValue>& features);

}  // namespace lockstep
