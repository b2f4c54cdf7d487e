// Any bytes give a DataError or the values that protobuf's own parser finds in them. (If that
// parser finds damage, it may be in features that were not requested and thus not parsed.)
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/example.h"
#include "lockstep/data/sources/example.pb.h"

namespace {

using lockstep::DType;
using lockstep::ExampleParser;
using lockstep::FeatureLength;
using lockstep::Tensor;

void expect(bool condition) {
  if (!condition) std::abort();
}

template <class T, class Values>
void expect_values(const Tensor& tensor, const Values& values) {
  const auto found = tensor.values<T>();
  expect(found.size() == static_cast<std::size_t>(values.size()));
  expect(found.empty() || std::memcmp(found.data(), &values[0], found.size_bytes()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ExampleParser parser(
      {{.name = "a", .length = FeatureLength::Variable},
       {.name = "b", .dtype = DType::I64, .length = FeatureLength::Variable},
       {.name = "c", .dtype = DType::U8, .length = FeatureLength::Variable},
       {.name = "d",
        .dtype = DType::I32,
        .shape = {4},
        .length = FeatureLength::Padded,
        .pad = 1}});
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<Tensor> tensors;
  try {
    tensors = parser.parse(bytes, "input", 0);
  } catch (const lockstep::DataError&) {
    return 0;
  }
  lockstep::examples::Example example;
  if (!example.ParseFromArray(data, static_cast<int>(size))) return 0;
  std::map<std::string, lockstep::examples::Feature> features;
  for (const auto& entry : example.features().entry()) features[entry.name()] = entry.value();
  expect_values<float>(tensors[0], features["a"].floats().value());
  expect_values<std::int64_t>(tensors[1], features["b"].integers().value());
  if (features["c"].has_byte_strings()) {
    expect_values<std::uint8_t>(tensors[2], features["c"].byte_strings().value(0));
  }
  expect(tensors[3].elements() == 4);
  return 0;
}
