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
  Variable,  // any number of rows of the shape: the tensor's is (rows, shape…)
  Padded,    // up to as many rows as the shape has, filled up with `pad`
};

// What to read of each record, and as what. u8 reads a byte string (an encoded image, say: u8 and
// Variable); f32 and f64 read floats; i32, i64 and bool read integers.
struct FeatureSpec {
  std::string name = "";
  DType dtype = DType::F32;
  Shape shape = {};
  FeatureLength length = FeatureLength::Fixed;
  double pad = 0;
  // In place of a feature that a record lacks: a tensor of the dtype and of the shape, or a scalar
  // to fill the shape with. Without one, a record that lacks a feature is a DataError where its
  // length is Fixed, and has no rows of it otherwise.
  Tensor missing = {};
};

// Makes tensors of records. It holds no state and may be used by several threads at once.
class ExampleParser {
 public:
  // UsageError for features that cannot be: none, two of a name, a dtype that is not read.
  explicit ExampleParser(std::vector<FeatureSpec> features);

  const std::vector<FeatureSpec>& features() const { return features_; }

  // One tensor a feature, in their order. DataError, naming the file, the record and the feature,
  // what was expected and what was found.
  std::vector<Tensor> parse(std::string_view bytes, std::string_view file,
                            std::int64_t record) const;

 private:
  std::vector<FeatureSpec> features_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views of the names in features_
};

using FeatureValue = std::variant<std::string, std::vector<std::string>, std::vector<float>,
                                  std::vector<std::int64_t>>;

// The bytes of an Example with these features. The same features give the same bytes.
std::string serialize_example(const std::map<std::string, FeatureValue>& features);

}  // namespace lockstep
