// A TFRecord file of two Examples that TensorFlow wrote (golden/make_ops.py).
//   image: the bytes FF D8 00 "jpeg"; label: 3; weights: 0.5, -1.25, 3e38
//   image: no bytes; label: -1, 2^40; weights: none
#pragma once

#include <string>

#include "golden/ops.h"

namespace lockstep::testing {

inline std::string tensorflow_file() {
  const auto bytes = golden::op("tfrecord/file").values<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

}  // namespace lockstep::testing
